"""The comparison of auto with each placement: with equal work auto finds what the best of them does."""

from __future__ import annotations

import pytest

from benchmarks.placements.race import Budget, Case, above, cell, excess, table
from pipeloom.ir.profile import Profile, StageProfile

STAGES = (StageProfile(2.0, 2.3, 1.0, 1.0, 0.5), StageProfile(1.7, 2.1, 1.2, 1.0, 0.5))
CASE = Case("two unequal stages", Profile(STAGES, 2, 0.1), 4)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_with_equal_work_auto_is_nowhere_above(share: float) -> None:
    budget = Budget(1.0, work=0.5)
    found = cell(CASE, share, budget)
    assert found["violations"] == []
    assert found["alone"][found["choice"]] is not None
    assert not above(found, budget)
    assert len(table([found])) == 3


def test_a_better_placement_by_itself_is_seen() -> None:
    found = {"alone": {"v": 10.0, "linear": None}, "auto": 10.1, "violations": []}
    assert excess(found) == pytest.approx(0.01)
    assert above(found, Budget(1.0))
