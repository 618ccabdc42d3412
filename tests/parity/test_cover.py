"""The pinned cases contain every compatible pair of features."""

from __future__ import annotations

from pipeloom.solver import FAMILIES
from tests.parity.cases import Case
from tests.parity.cover import COMPILED, compiled, pinned, rows, uncovered
from tests.parity.features import FEATURES


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


def test_a_case_is_read_from_its_words() -> None:
    assert [Case.read(str(case)) for case in pinned()] == pinned()
