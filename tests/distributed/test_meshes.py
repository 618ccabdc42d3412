"""Meshes: pipelines whose stages are expert parallel, or tensor parallel over a sequence, train as
one process does, in replicas and in hybrid shards; other meshes are in `tests/parity`."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from pipeloom.runtime import launch_ranks
from tests.distributed.cases.mesh_refusals import refusals
from tests.distributed.cases.meshes import Case, Outcome, run_cases

FLOAT = torch.float32
TP, EP = (("pp", 2), ("tp", 2)), (("pp", 2), ("ep", 2))
CASES = [
    Case("zb-h1", TP, sequence=True, ahead=True),
    Case("zb-h1", TP, sequence=True, options=(("param_dtype", FLOAT),), bound=1e-5),
    Case("weipipe-interleave", TP, sequence=True),
    Case("zb-h1", EP, sharded=("ep",), tie=False),
    Case("zb-v", EP, ahead=True),
    Case("1f1b", (("pp", 1), ("dp", 2), ("tp", 2)), sequence=True, sharded=("dp",), tie=False),
    Case("1f1b", (("pp", 1), ("rep", 2), ("dp", 2)), sharded=("rep", "dp"), tie=False),
    Case("1f1b", (("pp", 1), ("dp", 2), ("ep", 2)), sharded=("dp",), tie=False),
]


@cache
def results() -> tuple[dict[Case, list[Outcome]], dict[str, str]]:
    """Of all cases in one launch, and what is refused."""
    found = launch_ranks(run, 4, timeout=280, message_timeout=100)
    rows = [outcomes for outcomes, _ in found.values()]
    return {case: [row[i] for row in rows] for i, case in enumerate(CASES)}, found[0][1]


def run() -> tuple[list[Outcome], dict[str, str]]:
    return run_cases(CASES), refusals()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_meshes_train_as_one_process(case: Case) -> None:
    for outcome in results()[0][case]:
        check(case, outcome)


def check(case: Case, outcome: Outcome) -> None:
    assert outcome.parameters <= case.bound
    split = case.family.startswith(("zb", "wzb"))
    assert (outcome.deferred > 0) is split, "products with DTensors are put off, too"


SAID = {
    "ties": "expected copies laid out alike, got S(0) at (",
    "copies averaged": "0.bias: expected a copy of it on each process of data_group, [",
    "experts unnamed": "0.bias [8] is not on all of them: experts that each has of its own",
    "some experts": "0.weight: expected a copy of it on each process of data_group, [0, 1, 2, 3]",
    "sharded in part": "expected fully_shard over the processes of data_group, [0, 1, 2, 3], got",
    "over ranks": "expected those of one rank in their pipelines, got [0, 0, 1, 1]",
    "output": "expected this process's part of its output, got a DTensor",
    "sequence": "0.norm.bias: expected one gradient on the processes [0, 1], each of which",
}


def test_meshes_that_do_not_fit_are_told() -> None:
    _, found = results()
    assert found.keys() == SAID.keys()
    for name, words in SAID.items():
        assert words in found[name], (name, found[name])
        assert "\n" not in found[name]
