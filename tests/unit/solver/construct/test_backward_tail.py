"""Ends of schedules that are built again, backwards in time."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Report, Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.construct.backward_tail import TailBuilder
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.families import build_family
from pipeloom.solver.families.applicable import build_families


def test_the_end_of_zb_v_meets_the_bound_of_the_last_forward() -> None:
    stage = StageProfile(6.763, 6.969, 5.251, 1.0, 0.4324)
    zb_v = build_family("zb-v", Profile((stage,) * 32, 16, 0.755), 40)
    problem = replace(zb_v.problem, memory_limit=(32.0,) * 16)
    best = Incumbent(problem, lower_bound(problem), SolveOptions())
    best.offer(zb_v.order, "zb-v")
    assert best.cost > 1.0005 * best.bound.value
    TailBuilder(problem, np.random.default_rng(0)).round(best)
    assert best.closed


@pytest.mark.parametrize(
    ("placement", "limit"),
    [
        (Placement.v(4), 6.0),
        (Placement.interleaved(4, 2), 11.0),
        (Placement.bidirectional(4), 10.0),
    ],
    ids=["v", "interleaved", "two copies"],
)
@pytest.mark.parametrize("objective", Objective)
def test_what_is_built_is_valid_and_better(
    placement: Placement, limit: float, objective: Objective
) -> None:
    """Unequal stages, one with a W that takes no time, and limited memory."""
    rng = np.random.default_rng(3)
    stages = len(placement.owners)
    times = rng.uniform(0.8, 1.2, (stages, 3))
    times[1, 2] = 0.0
    profile = Profile(tuple(StageProfile(*row, 1.0, 0.5) for row in times.tolist()), 4, 0.1)
    problem = Problem(profile, 12, placement, (limit,) * 4, objective)
    best = Incumbent(problem, lower_bound(problem), SolveOptions())
    build_families(best)
    before, builder = best.cost, TailBuilder(problem, rng)
    for _ in range(8):
        builder.round(best)
    assert best.order is not None
    found = timed(Schedule(problem, best.order, report=Report(objective, "backward-tail")))
    assert verify_schedule(json.loads(json.dumps(dump_schedule(found)))) == []
    assert best.cost < before
