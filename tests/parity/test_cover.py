"""Pinned cases have every pair of features that can meet; those that cannot are refused in a line
that is listed."""

from __future__ import annotations

from functools import cache

import pytest

from pipeloom.solver import FAMILIES
from tests.parity.cases import Case
from tests.parity.checking import group_of, refusals
from tests.parity.cover import COMPILED, compiled, pinned, rows, uncovered
from tests.parity.features import CONFLICTS, FEATURES, Conflict, conflicting

LISTED = [conflict for conflict in CONFLICTS if conflict.line is not None]


def test_every_pair_of_features_that_can_meet_does() -> None:
    assert uncovered([*rows(without=COMPILED), *rows(only=COMPILED)]) == []
    assert len(pinned()) < 80


def test_every_choice_of_a_feature_is_taken() -> None:
    taken = {choice for case in (*pinned(), *compiled()) for choice in case.choices}
    wanted = {
        choice
        for values in FEATURES.values()
        for some in values.values()
        for each in some
        for choice in Case.of(0, 0, each).choices
    }
    assert wanted - taken == set()


def test_every_family_is_tried() -> None:
    assert {case["plan"] for case in pinned()} >= {*FAMILIES}


def test_a_pair_that_does_not_meet_is_found() -> None:
    cover = rows(without=COMPILED)
    without = [row for row in cover if row["plan"] != "split" or row["tied"] != "ends"]
    assert (("plan", "split"), ("tied", "ends")) in uncovered(without)


@pytest.mark.parametrize("conflict", LISTED, ids=str)
def test_features_that_cannot_meet_are_refused_in_a_line(conflict: Conflict) -> None:
    assert conflict.line is not None
    for case in tried(conflict):
        line = said()[case] or ""
        assert conflict.line in line, f'"{case}": {line}'
        assert "\n" not in line


def tried(conflict: Conflict) -> list[Case]:
    """All pairs in threads; where all are in processes, one."""
    cases = conflicting(conflict)
    return [case for case in cases if not case.in_processes] or cases[:1]


@cache
def said() -> dict[Case, str | None]:
    """Those in processes in one launch, as far as that goes."""
    return dict(refusals([case for conflict in LISTED for case in tried(conflict)]))


def test_a_case_is_read_from_its_words() -> None:
    assert [Case.read(str(case)) for case in pinned()] == pinned()
    assert len({group_of(case) for case in pinned()}) > 1
