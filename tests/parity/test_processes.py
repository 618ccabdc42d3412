"""Pinned cases of ranks that are processes train as one process does: replicas, shards and tensor
parallel stages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parity.cases import ANYWHERE, Case
from tests.parity.checking import Outcome, check
from tests.parity.judging import judge
from tests.parity.pinned import pinned

FOUND: list[tuple[int, dict[str, Any]]] = [
    (
        0,
        {
            **{"ranks": 2, "plan": ANYWHERE, "tensor parallel": "all"},
            **{"input": "tokens", "edges": "parameter"},
        },
    ),
    (74, {"ranks": 2, "plan": ANYWHERE, "tensor parallel": "all", "compiled": "parts"}),
]
"""Numbers of plans, and features that met: they failed."""
CASES = [case for case in pinned() if case.in_processes]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.number} {case['plan']}")
def test_trains_as_one_process(case: Case) -> None:
    judge(case, CASES)


@pytest.mark.parametrize(("number", "choices"), FOUND, ids=str)
def test_what_was_found_trains_as_one_process(number: int, choices: dict[str, Any]) -> None:
    """Each in a launch of its own: what torch.compile keeps of one case may fail the next."""
    assert check(Case.of(1, number, choices)) == Outcome()
