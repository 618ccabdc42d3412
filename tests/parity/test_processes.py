"""Pinned cases of ranks that are processes train as one process does: replicas, shards and tensor
parallel stages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parity.cases import ANYWHERE, Case
from tests.parity.checking import Outcome, check, judge
from tests.parity.cover import pinned

FOUND: list[tuple[int, dict[str, Any]]] = [
    (74, {"ranks": 2, "plan": ANYWHERE, "tensor parallel": "all", "compiled": "parts"})
]
"""Numbers of plans, and features that met: they failed."""
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
SENT: dict[str, Any] = {"plan": ANYWHERE, "tensor parallel": "all", "input": "tokens"}
CASES = [case for case in pinned() if case.in_processes]
CASES += [Case.of(0, 100 + i, {"optimizer": "momentum"} | each) for i, each in enumerate(MESHES)]
CASES.append(Case.of(1, 0, SENT | {"edges": "parameter"}))  # failed once


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.number} {case['plan']}")
def test_trains_as_one_process(case: Case) -> None:
    judge(case, CASES)


@pytest.mark.parametrize(("number", "choices"), FOUND, ids=str)
def test_what_was_found_trains_as_one_process(number: int, choices: dict[str, Any]) -> None:
    """Each in a launch of its own: what torch.compile keeps of one case may fail the next."""
    assert check(Case.of(1, number, choices)) == Outcome()
