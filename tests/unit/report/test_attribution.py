"""Where a run took longer than planned; a run is simulated with the plan's order."""

from __future__ import annotations

from dataclasses import asdict, replace
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


def test_each_cause_is_told_from_the_others() -> None:
    last = np.arange(COUNT) == COUNT - 1
    for cause, least, other in (
        ("none", 0.0, profile()),
        ("slower", 2.0, longer(t_b=2.0)),
        ("uneven", 9.0, longer(t_w=9.0 * last)),
        ("receive", 1.5, profile(t_comm=COMM + 1.5)),
    ):
        plan = build_family("zb-h1", profile(), COUNT)
        found = attribute(plan, ran(plan, other))
        causes = asdict(found.causes)
        assert causes.pop(cause, 0.0) >= least
        assert [*causes.values()] == pytest.approx([0.0] * len(causes), abs=1e-9), cause
        slow = {loss.op.kind.name for loss in found.chain if loss.causes.slower > 1.0}
        assert slow == ({"B"} if cause == "slower" else set())
    alone, paused = (Profile((StageProfile(*[x] * 3),), 1) for x in (9.0, 9.25))
    plan = build_family("zb-h1", alone, COUNT)
    causes = asdict(attribute(plan, ran(plan, paused, pause=0.25)).causes)
    host = causes.pop("host") + causes.pop("start")
    assert host == pytest.approx(0.25 * (3 * COUNT - 1), abs=0.3)
    assert [*causes.values()] == pytest.approx([0.0] * 3, abs=1e-9)


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "gpipe"])
@pytest.mark.parametrize("seed", range(5))
def test_the_causes_and_each_ranks_parts_add_up(family: str, seed: int) -> None:
    random, plan = Random(seed), build_family(family, profile(), COUNT)
    times = {key: [random.uniform(-1, 5) for _ in range(COUNT)] for key in ("t_f", "t_b", "t_w")}
    late = tuple(tuple(COMM + random.uniform(0, 4) for _ in range(RANKS)) for _ in range(RANKS))
    other = replace(longer(**{key: np.array(each) for key, each in times.items()}), t_comm=late)
    found = attribute(plan, ran(plan, other))
    assert found.causes.total - found.slack == pytest.approx(found.measured - found.planned)
    assert found.slack > -1e-9
    for row in found.ranks:
        parts = row.compute + row.waiting + row.receive + row.host
        assert parts == pytest.approx(found.measured)
        assert row.peak == 7.0
