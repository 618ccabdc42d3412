"""A profile from the steps of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeloom.cli.tune import Planner
from pipeloom.ir.profile import Profile, StageProfile
from pipeloom.ir.schedule import Schedule
from pipeloom.ir.simulate import simulate
from pipeloom.runtime.reprofile import reprofile
from pipeloom.solver.families import build_family

OLD = Profile(tuple(StageProfile(2.0, 2.0, 1.0 + s, 1.0, 0.4) for s in range(3)), 3, t_comm=0.1)
TRUE = Profile(tuple(StageProfile(3.0, 4.0, 5.0 - s, 1.0, 0.4) for s in range(3)), 3, t_comm=0.1)


def trace(family: str, stretched: float = 1.0) -> Schedule:
    """What a run of a schedule for ``OLD`` looks like where the times are ``TRUE``."""
    plan = build_family(family, OLD, 6)
    ran = simulate(replace(plan, problem=replace(plan.problem, profile=TRUE), timing=None))
    return replace(
        plan,
        timing=replace(
            ran,
            start=tuple(stretched * row for row in ran.start),
            end=tuple(stretched * row for row in ran.end),
            transfers=np.empty((0, 2)),
        ),
    )


def test_medians_of_several_steps_are_the_new_times() -> None:
    found = reprofile([trace("zb-h1"), trace("zb-h1", 7.0), trace("zb-h1")])
    times = [time for s in found.stages for time in (s.t_f, s.t_b, s.t_w)]
    assert times == pytest.approx([time for s in TRUE.stages for time in (s.t_f, s.t_b, s.t_w)])
    assert (found.t_comm, found.stages[1].m_w) == (OLD.t_comm, OLD.stages[1].m_w)


def test_a_fused_backward_is_shared_as_before() -> None:
    for old, true, found in zip(
        OLD.stages, TRUE.stages, reprofile([trace("1f1b")]).stages, strict=True
    ):
        assert found.t_b + found.t_w == pytest.approx(true.t_b + true.t_w)
        assert found.t_b / found.t_w == pytest.approx(old.t_b / old.t_w)


def test_a_program_is_changed_for_a_shorter_plan_alone() -> None:
    planner = Planner(build_family("gpipe", OLD, 6), (), time_limit=30.0, seed=0)
    better = planner([trace("gpipe")])
    assert better is not None
    profile = better.schedule.problem.profile
    assert profile.stages[0].t_f == pytest.approx(TRUE.stages[0].t_f)
    ran = better.schedule
    assert ran.timing is not None
    assert ran.timing.period < build_family("gpipe", profile, 6).timing.period  # type: ignore[union-attr]
    assert planner([replace(ran, problem=replace(ran.problem, profile=OLD))]) is None
