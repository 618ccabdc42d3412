"""Pinned cases with processes as ranks train as one process does; conflicts are refused in a line.

They have replicas, shards and tensor parallel stages. Nearly all share one launch.
"""

from __future__ import annotations

import pytest

from tests.parity.cases import Case
from tests.parity.checking import Outcome, check, judge, outcome_of
from tests.parity.cover import found, pinned
from tests.parity.features import refused

FOUND = [case for case in found() if case.in_processes]
TRAINED = [case for case in pinned() if case.in_processes]
TRAINED += [case for case in FOUND if case["compiled"] == "no"]
REFUSED = {case: line for case, line in refused() if case.in_processes}
CASES = [*TRAINED, *REFUSED]


@pytest.mark.parametrize("case", TRAINED, ids=lambda case: f"{case.number} {case['plan']}")
def test_trains_as_one_process(case: Case) -> None:
    judge(case, CASES)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in FOUND if case["compiled"] != "no"], ids=str)
def test_compiled_stages_that_are_sent_train_as_one_process(case: Case) -> None:
    """Runs in its own launch, because caches of torch.compile from one case can break the next."""
    assert check(case) == Outcome()


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_features_that_cannot_meet_are_refused_in_a_line(case: Case) -> None:
    assert REFUSED[case] in (outcome_of(case, CASES).refused or "")
