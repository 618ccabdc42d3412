"""Pinned cases of ranks that are processes train as one process does: replicas, shards and tensor
parallel stages; and those that cannot meet are refused in a line. Nearly all are of one launch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parity.cases import ANYWHERE, Case
from tests.parity.checking import Outcome, check, judge, outcome_of
from tests.parity.cover import FEW, pinned
from tests.parity.features import refused

IN_PARTS: dict[str, Any] = {"tensor parallel": "all", "sequence": True, "clip": 0.05}
EXPERTS: dict[str, Any] = {"replicas": "experts", "experts": "all", "clip": 0.05}
MESHES: list[dict[str, Any]] = [
    IN_PARTS | {"plan": "zb-h1", "tied": "ends", "input": "tokens", "ahead": True},
    IN_PARTS | {"plan": "zb-h1", "param_dtype": "float32"},
    IN_PARTS | {"plan": "weipipe-interleave", "tied": "middle"},
    IN_PARTS | {"ranks": 1, "replicas": "sharded"},
    EXPERTS | {"plan": "zb-v", "tied": "ends", "input": "tokens", "ahead": True},
    EXPERTS | {"plan": "zb-h1"},
    EXPERTS | {"ranks": 1, "replicas": "sharded experts"},
    {"ranks": 1, "replicas": "hybrid", "clip": 0.05},
]
"""Sequence and expert parallel stages, and hybrid shards."""
SENT: dict[str, Any] = FEW | {"plan": ANYWHERE, "tensor parallel": "all"}
FOUND = Case.of(1, 0, SENT | {"edges": "parameter", "input": "tokens"})
COMPILED = Case.of(1, 74, SENT | {"compiled": "parts"})
"""Features that met, and failed once."""
TRAINED = [case for case in pinned() if case.in_processes]
TRAINED += [Case.of(0, 100 + i, FEW | {"optimizer": "momentum"} | m) for i, m in enumerate(MESHES)]
TRAINED.append(FOUND)
REFUSED = {case: line for case, line in refused() if case.in_processes}
CASES = [*TRAINED, *REFUSED]


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: f"{case.number} {case['plan']}")
def test_trains_as_one_process(case: Case) -> None:
    judge(case, CASES)


@pytest.mark.slow
def test_compiled_stages_that_are_sent_train_as_one_process() -> None:
    """In a launch of its own: what torch.compile keeps of one case may fail the next."""
    assert check(COMPILED) == Outcome()


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_features_that_cannot_meet_are_refused_in_a_line(case: Case) -> None:
    assert REFUSED[case] in (outcome_of(case, CASES).refused or "")
