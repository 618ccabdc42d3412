"""The comparison of auto with each placement: with equal work auto finds what the best of them
does."""

from __future__ import annotations

from benchmarks.placements.cells import Budget, Case, above, cell, table
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
