"""Where a run took longer than planned; a run is simulated with the plan's order."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from pipeloom import Profile, Schedule, StageProfile, build_family, simulate
from pipeloom.report import attribute

COMM, RANKS, COUNT = 0.5, 3, 6


def profile(*more: StageProfile, t_comm: Any = COMM) -> Profile:
    planned = [StageProfile(10.0 + s, 11.0, 8.0 + s, 1.0, 0.4) for s in range(RANKS)]
    return Profile(more or tuple(planned), RANKS, t_comm)


def ran(plan: Schedule, other: Profile, pause: float = 0.0) -> Schedule:
    """``plan`` with the times of another profile, and a pause before each op."""
    timing = simulate(replace(plan, problem=replace(plan.problem, profile=other)))
    start = tuple(row + pause for row in timing.start)
    return replace(plan, timing=replace(timing, start=start, peak_memory=(7.0,) * RANKS))


def longer(**more: Any) -> Profile:
    """A profile with longer op times, by one number or by one per microbatch."""
    by = {key: np.zeros(COUNT) + each for key, each in more.items()}

    def at(stage: StageProfile, microbatch: int) -> StageProfile:
        return replace(stage, **{key: getattr(stage, key) + by[key][microbatch] for key in by})

    stages = profile().stages
    return profile(*(StageProfile.of([at(stage, j) for j in range(COUNT)]) for stage in stages))


def test_idle_time_is_told_by_its_cause() -> None:
    plan = build_family("1f1b", profile(), COUNT)
    planned, late = (
        attribute(plan, ran(plan, other)).ranks for other in (profile(), profile(t_comm=COMM + 1.5))
    )
    assert all(row.compute == row.planned_compute for row in (*planned, *late))
    assert [row.host for row in (*planned, *late)] == pytest.approx([0.0] * 2 * RANKS, abs=1e-9)
    assert [row.receive for row in planned] == pytest.approx([3.0, 3.5, 0.5])
    assert [row.receive for row in late] == pytest.approx([12.0, 14.0, 6.0])
    alone, paused = (Profile((StageProfile(*[x] * 3),), 1) for x in (9.0, 9.25))
    plan = build_family("zb-h1", alone, COUNT)
    (row,) = attribute(plan, ran(plan, paused, pause=0.25)).ranks
    assert row.host == pytest.approx(0.25 * (3 * COUNT - 1), abs=0.3)


@pytest.mark.timeout(30)
def test_a_plan_with_many_transfers_takes_no_long_time() -> None:
    stages = tuple(StageProfile(10.0, 11.0, 8.0, 1.0, 0.4) for _ in range(16))
    plan = build_family("weipipe-interleave", Profile(stages, 16, COMM), 256)
    plan = replace(plan, timing=simulate(plan))
    assert len(plan.transfers) > 10_000
    found = attribute(plan, plan)
    assert found.planned == found.measured


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "gpipe"])
@pytest.mark.parametrize("seed", range(5))
def test_each_ranks_parts_add_up(family: str, seed: int) -> None:
    random, plan = Random(seed), build_family(family, profile(), COUNT)
    times = {key: [random.uniform(-1, 5) for _ in range(COUNT)] for key in ("t_f", "t_b", "t_w")}
    late = tuple(tuple(COMM + random.uniform(0, 4) for _ in range(RANKS)) for _ in range(RANKS))
    other = replace(longer(**{key: np.array(each) for key, each in times.items()}), t_comm=late)
    found = attribute(plan, ran(plan, other))
    for row in found.ranks:
        parts = row.compute + row.waiting + row.receive + row.host
        assert parts == pytest.approx(found.measured)
        assert row.peak == 7.0
