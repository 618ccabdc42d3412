"""Pinned cases have every pair of features that can meet; those that cannot are refused in a line
that is listed."""

from __future__ import annotations

import pytest

from pipeloom.solver import FAMILIES
from tests.parity.cases import Case
from tests.parity.checking import group_of, refusals
from tests.parity.cover import rows, uncovered
from tests.parity.features import CONFLICTS, FEATURES, Conflict, conflicting
from tests.parity.pinned import COMPILED, compiled, pinned

LISTED = [conflict for conflict in CONFLICTS if conflict.line is not None]


def test_every_pair_of_features_that_can_meet_does() -> None:
    assert uncovered(rows()) == uncovered(rows(without=COMPILED), without=COMPILED) == []
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
    without = [row for row in rows() if row["plan"] != "split" or row["tied"] != "ends"]
    assert (("plan", "split"), ("tied", "ends")) in uncovered(without)


@pytest.mark.parametrize("conflict", LISTED, ids=str)
def test_features_that_cannot_meet_are_refused_in_a_line(conflict: Conflict) -> None:
    """One pair of each conflict in processes, all others in threads."""
    cases = sorted(conflicting(conflict), key=lambda case: case.in_processes)
    threads = [case for case in cases if not case.in_processes]
    found = dict(refusals(threads or cases[:1]))
    assert found
    for case, line in found.items():
        assert conflict.line in (line or ""), f'"{case}": {line}'
        assert "\n" not in (line or "")


def test_a_case_is_read_from_its_words() -> None:
    assert [Case.read(str(case)) for case in pinned()] == pinned()
    assert len({group_of(case) for case in pinned()}) > 1
