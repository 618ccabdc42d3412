"""The comparison of plain ``optimize`` with each placement by itself, on little time."""

from __future__ import annotations

from benchmarks.gaps.placements import cell, drawn, excess


def test_a_seed_gives_the_same_profiles() -> None:
    assert drawn(1, 3) == drawn(1, 3) != drawn(2, 3)


def test_a_cell_has_each_placement_and_what_plain_optimize_chose() -> None:
    found = cell(1, 3, seconds=0.2, runs=1)
    assert found["violations"] == []
    assert {"linear", "v", "interleaved:3"} <= found["alone"].keys()
    assert found["plain"][0]["placement"] in found["alone"]
    assert abs(excess(found)) < 1
