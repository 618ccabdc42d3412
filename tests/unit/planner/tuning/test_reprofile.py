"""A profile from the steps of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.simulator import simulate, timed
from pipeloom.ir.model.ops import parse_order
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Relay
from pipeloom.ir.model.schedule import Schedule, Status
from pipeloom.planner.tuning.replan import Replanner
from pipeloom.planner.tuning.reprofile import reprofile
from pipeloom.solver.families import build_family
from pipeloom.solver.optimize import optimize

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


@pytest.mark.parametrize(("order", "t_r"), [("0F0 0R0 0B0 0W0", 5.0), ("0F0 0B0 0W0", 3.0)])
def test_recomputing_takes_what_it_took_or_follows_the_forwards(order: str, t_r: float) -> None:
    old, true = (
        Profile((StageProfile(t_f, 2.0, 2.0, t_r=r, m_r=0.5, t_fb=5.0),), 1)
        for t_f, r in ((2.0, 2.0), (3.0, 5.0))
    )
    ran = timed(Schedule.of(Problem.linear(true, 1), [parse_order(order)], "custom"))
    found = reprofile([replace(ran, problem=Problem.linear(old, 1))]).stages[0]
    assert found.t_r == pytest.approx(t_r)
    assert found.t_fb == pytest.approx(5.0 * 7 / 6)


def test_a_program_is_changed_for_a_shorter_plan_alone() -> None:
    first = compile_schedule(build_family("gpipe", OLD, 6), post_validation=True)
    planner = Replanner(first, (), time_limit=30.0, seed=0)
    better = planner([trace("gpipe")])
    assert better is not None
    assert any(isinstance(i, Relay) for row in better.instructions for i in row)
    profile = better.schedule.problem.profile
    assert profile.stages[0].t_f == pytest.approx(TRUE.stages[0].t_f)
    ran = better.schedule
    assert ran.known_timing.period < build_family("gpipe", profile, 6).known_timing.period
    assert planner([replace(ran, problem=replace(ran.problem, profile=OLD))]) is None


def test_a_plan_with_pairs_is_not_longer_than_itself() -> None:
    """What ran is the optimum; ops of its pairs are measured one by one."""
    stage = StageProfile(1.0, 1.2, 0.8, 1.0, 0.5, t_fb=2.25)
    problem = Problem(Profile((stage,) * 2, 1), 4, Placement.of_stages((0, 0)), (float("inf"),))
    best = optimize(problem, work_limit=2)
    assert best.known_report.status is Status.OPTIMAL
    assert any(best.pairs)
    ran = replace(best, timing=simulate(replace(best, pairs=(), timing=None)))
    planner = Replanner(compile_schedule(best), (), time_limit=30.0, seed=0)
    assert planner([ran]) is None
    assert planner([replace(ran, pairs=())]) is not None
