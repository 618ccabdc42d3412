"""The comparison of auto with each placement: with equal work auto finds what the best of them
does."""

from __future__ import annotations

import pytest

from benchmarks.placements.cells import Budget, Case, above, cell, excess, table
from pipeloom.ir.model.profile import Profile, StageProfile

STAGES = (StageProfile(2.0, 2.3, 1.0, 1.0, 0.5), StageProfile(1.7, 2.1, 1.2, 1.0, 0.5))
CASE = Case("two unequal stages", Profile(STAGES, 2, 0.1), 4)


def test_with_equal_work_auto_is_nowhere_above() -> None:
    budget = Budget(1.0, work=0.5)
    found = cell(CASE, 1.0, budget)
    assert found["violations"] == []
    assert found["alone"][found["choice"]] is not None
    assert not above(found, budget)
    assert len(table([found])) == 3


def test_a_better_placement_by_itself_is_seen() -> None:
    found = {"alone": {"v": 10.0, "linear": None}, "auto": 10.1, "violations": []}
    assert excess(found) == pytest.approx(0.01)
    assert above(found, Budget(1.0))


def test_within_seconds_the_clock_and_a_shared_time_have_columns_of_their_own() -> None:
    found = {
        "case": "two", "ranks": 2, "microbatches": 4, "share": 1.0, "bound": 8.0, "choice": "v",
        "alone": {"v": 10.0, "linear": None}, "again": {"v": 9.9, "linear": None},
        "auto": 9.8, "shared": 10.5, "violations": [],
    }  # fmt: skip
    assert excess(found) == pytest.approx(-0.02)
    assert excess(found, "again") == pytest.approx(-0.01)
    assert excess(found, "shared") == pytest.approx(0.05)
    assert not above(found, Budget(1.0))
    assert table([found])[2].endswith("| 1.2500 | - | 1.2250 | v | 1.3125 |")
