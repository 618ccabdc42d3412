"""A slice of ``python -m benchmarks.combinations``, what it has found, and that it can fail."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from benchmarks.combinations import Outcome, check, checked
from benchmarks.combinations.cases import ANYWHERE, ENDS, RANDOM, Case
from benchmarks.combinations.plain import Plain

SEED, FAST, MORE = 1, 16, 300
FOUND: list[tuple[int, dict[str, Any]]] = [
    (0, {"ranks": 2, "plan": "chimera", "idle": "all", "optimizer": "adamw"}),
    (0, {"ranks": 2, "tied": "idle", "optimizer": "adamw"}),
    (0, {"ranks": 2, "generator": "all", "evaluates": True, "exchange": "count"}),
    (0, {"ranks": 2, "generator": "all", "ahead": True, "clip": 0.05}),
    (0, {"ranks": 2, "input": "tokens", "tied": "second name", "clip": 0.05}),
    (0, {"ranks": 2, "plan": "chimera", "input": "tokens", "tied": "second name"}),
    (478, {"ranks": 4, "plan": ANYWHERE, "loss_scale": 1024.0}),
    (0, {"ranks": 3, "empty": "all", "clip": 0.05, "exchange": "program"}),
    (358, {"ranks": 4, "plan": ANYWHERE, "stages_as": "aten", "experts": "all"}),
    (0, {"ranks": 2, "plan": "chimera", "frozen": "all", "thaws": True}),
    (0, {"ranks": 3, "plan": ENDS, "tied": "idle", "param_dtype": "float32"}),
    (0, {"ranks": 3, "plan": "pipedream", "twice": "all"}),
    (402, {"ranks": 3, "plan": RANDOM, "clip": 0.05, "ahead": True}),
    (0, {"ranks": 2, "plan": "zb-h1", "compiled": "in place", "twice": "all"}),
    (0, {"ranks": 2, "compiled": "parts", "stages_as": "aten", "remat": "some"}),
    (0, {"ranks": 2, "plan": "weipipe-interleave", "table": "all"}),
    (0, {"ranks": 2, "plan": ANYWHERE, "edges": "parameter"}),
    (
        0,
        {
            **{"ranks": 2, "plan": ANYWHERE, "tensor parallel": "all"},
            **{"input": "tokens", "edges": "parameter"},
        },
    ),
    (0, {"ranks": 2, "plan": "zb-h1", "phases": "all"}),
    (74, {"ranks": 2, "plan": ANYWHERE, "tensor parallel": "all", "compiled": "parts"}),
    (0, {"ranks": 3, "plan": "pipedream", "optimizer": "none", "frozen": "all", "thaws": True}),
]
"""Numbers of plans, and features that met: they trained otherwise than one process, without a word,
or failed."""


@cache
def found_outcomes(kind: tuple[object, ...]) -> dict[str, Outcome]:
    """The cases of a kind, which run in one launch."""
    cases = [Case.of(SEED, number, choices) for number, choices in FOUND]
    alike = [case for case in cases if _kind(case) == kind]
    return {str(case): outcome for case, outcome in checked(alike)}


def _kind(case: Case) -> tuple[object, ...]:
    """Cases with torch.compile are apart: what it keeps from one may fail the next."""
    return case["ranks"], case.width, case["compiled"]


@pytest.mark.parametrize(("number", "choices"), FOUND, ids=str)
def test_what_was_found_trains_as_one_process(number: int, choices: dict[str, Any]) -> None:
    case = Case.of(SEED, number, choices)
    outcome = found_outcomes(_kind(case))[str(case)]
    assert not outcome.faults
    assert not outcome.refused
    assert not outcome.unmade


def test_drawn_features_train_as_one_process_or_are_refused() -> None:
    cases = [Case.drawn(SEED, number) for number in range(FAST)]
    _check(cases)


@pytest.mark.slow
def test_more_of_them() -> None:
    _check([Case.drawn(SEED, number) for number in range(MORE)])


def _check(cases: Sequence[Case]) -> None:
    found = {str(case): outcome.faults for case, outcome in checked(cases) if outcome.faults}
    assert found == {}


def test_what_is_not_one_processs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Plain._steps
    monkeypatch.setattr(
        Plain, "_steps", lambda plain: steps(plain) and plain.trained[0].grad is None
    )
    lines = check(Case.of(SEED, 0, {"ranks": 2})).faults
    assert {line.partition(":")[0] for line in lines} >= {"losses", "parameters"}
