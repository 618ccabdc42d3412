"""Pinned cases of ranks that are threads, what was once at fault, and some that are drawn each day:
they train as one process does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.parity.cases import Case
from tests.parity.checking import Outcome, check, checked
from tests.parity.comparing import BOUNDS
from tests.parity.cover import compiled, found, pinned
from tests.parity.features import listed, refused
from tests.parity.plain import Plain
from tests.support.recorded import today

CASES = [case for case in (*pinned(), *found()) if not case.in_processes]
REFUSED = [(case, line) for case, line in refused() if not case.in_processes]
DRAWN, MANY = 6, 300


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.number} {case['plan']}")
def test_trains_as_one_process(case: Case) -> None:
    assert check(case) == Outcome(), f'python -m tests.parity "{case}"'


@pytest.mark.parametrize(("case", "line"), REFUSED, ids=str)
def test_features_that_cannot_meet_are_refused_in_a_line(case: Case, line: str) -> None:
    assert line in (check(case).refused or "")


@pytest.mark.slow
@pytest.mark.parametrize("case", compiled(), ids=lambda case: f"{case.number} {case['plan']}")
def test_compiled_stages_train_as_one_process(case: Case) -> None:
    """Each by itself: what torch.compile keeps of one case may fail the next."""
    assert check(case) == Outcome(), f'python -m tests.parity "{case}"'


def test_drawn_features_train_as_one_process_or_are_refused() -> None:
    drawn = (Case.drawn(today(), number) for number in range(MANY))
    plain = (case for case in drawn if not (case.in_processes or case.hugging))
    few = [case for case in plain if case["compiled"] == "no"]
    check_drawn(few[:DRAWN])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_more_of_them() -> None:
    check_drawn([Case.drawn(today(), number) for number in range(MANY)])


def check_drawn(cases: Sequence[Case]) -> None:
    """Some train, and each refusal is one of those that are listed."""
    done = dict(checked(cases))
    wrong = [f'"{case}": {line}' for case, outcome in done.items() for line in outcome.faults]
    refused = {str(case): outcome.refused for case, outcome in done.items() if outcome.refused}
    assert wrong == []
    assert {case: line for case, line in refused.items() if not listed(line)} == {}
    assert Outcome() in done.values()


LOWER: list[tuple[dict[str, Any], bool]] = [
    ({"ranks": 2, "param_dtype": "float32", "optimizer": "momentum"}, True),
    ({"ranks": 2, "plan": "weipipe-interleave", "reduce_dtype": "float32"}, False),
    ({"ranks": 2, "input": "tokens", "tied": "ends", "reduce_dtype": "float32"}, False),
]


@pytest.mark.parametrize(("choices", "same"), LOWER, ids=str)
def test_lower_precision_is_no_name_alone(
    choices: dict[str, Any], same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To float64's digits: one process computes in it, too, but sends nothing in it."""
    monkeypatch.setitem(BOUNDS, "float32", BOUNDS["float64"])
    assert (check(Case.of(1, 0, choices)).faults == ()) is same


def test_what_is_not_one_processs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Plain._steps
    monkeypatch.setattr(
        Plain, "_steps", lambda plain: steps(plain) and plain.trained[0].grad is None
    )
    lines = check(Case.of(1, 0, {"ranks": 2})).faults
    assert {line.partition(":")[0] for line in lines} >= {"losses", "parameters"}
