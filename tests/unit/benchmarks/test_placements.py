"""The comparison of plain ``optimize`` with each placement by itself, on little time."""

from __future__ import annotations

import pytest

from benchmarks.gaps.placements import cell, drawn, excess


def test_a_seed_gives_the_same_profiles() -> None:
    assert drawn(1, 3) == drawn(1, 3) != drawn(2, 3)


def test_a_cell_has_each_placement_and_what_plain_optimize_chose() -> None:
    found = cell(drawn(1, 3), seconds=0.2, runs=1)
    assert found["violations"] == []
    assert {"linear", "v", "interleaved:3"} <= found["alone"].keys()
    assert found["plain"][0]["placement"] in found["alone"]
    assert found["work"] <= found["plain"][0]["lower_bound"] <= found["plain"][0]["cost"]
    assert excess(found) < 0.15  # linear, the worst, costs 0.11 more than the best


def test_the_excess_is_that_of_the_median_run_over_the_best_placement() -> None:
    plain = [{"cost": cost} for cost in (30.0, 11.0, 10.5)]
    assert excess({"plain": plain, "alone": {"linear": 12.0, "v": 10.0}}) == pytest.approx(0.1)
