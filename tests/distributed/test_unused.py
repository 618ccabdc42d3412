"""A parameter that no microbatch uses has no gradient, so that its optimizer leaves it as it is."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.families import build_family
from tests.distributed.cases.unused import (
    MICROBATCHES,
    STAGES,
    Steps,
    one_process,
    train,
    train_replicas,
)
from tests.support.launched import in_one_launch

FAMILIES = ("fsdp", "weipipe-naive", "weipipe-interleave", "wzb2", "chimera")
DTYPES = (None, torch.bfloat16)


@cache
def ranks() -> list[list[Any]]:
    """Of each rank its steps by programs, and as a replica."""
    stage = StageProfile(1.0, 1.0, 1.0, weight_bytes=1.0)
    profile = Profile((stage,) * STAGES, 2, 0.1)
    programs = [compile_schedule(build_family(name, profile, MICROBATCHES)) for name in FAMILIES]
    return in_one_launch(2, [(train, (DTYPES, programs)), (train_replicas, ())])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_nothing_uses_is_not_stepped(family: str, dtype: torch.dtype | None) -> None:
    seen = set[str]()
    for found in ranks()[0]:
        seen |= compared(
            found[DTYPES.index(dtype)][FAMILIES.index(family)], 1e-2 if dtype else 1e-6
        )
    assert seen == set(one_process()[0])


def test_what_no_replica_uses_is_not_stepped() -> None:
    for steps in ranks()[1]:
        assert compared(steps, 1e-6) == set(one_process()[0])


def compared(steps: Steps, atol: float) -> set[str]:
    """The parameters of a rank, which are one process's, as their gradients are."""
    expected = one_process()
    assert [expected[step]["0.odd"] is None for step in range(2)] == [True, False]
    for mine, wanted in zip(steps, expected, strict=True):
        for name, value in mine.items():
            one = wanted[name]
            assert (value is None) == (one is None), name
            if value is not None and one is not None:
                torch.testing.assert_close(value, one, rtol=1e-5, atol=atol)
    return set(steps[0])
