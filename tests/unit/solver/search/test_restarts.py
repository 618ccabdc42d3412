"""A search that begins anew goes on by itself, and offers what costs less than the best."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import work_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.search.restarts import Restarts

STAGE = StageProfile(6.0, 6.5, 4.5, m_b=1.05, m_w=0.6)
PROBLEM = Problem(Profile((STAGE,) * 6, 3, t_comm=0.4), 7, Placement.v(3), (7.0,) * 3)


def begun(work: float = 600) -> Incumbent:
    best = Incumbent(PROBLEM, work_bound(PROBLEM), SolveOptions(work_limit=work))
    best.offer(one_at_a_time(PROBLEM), "one-at-a-time")
    return best


def test_it_finds_nearly_the_work_and_what_it_offers_is_valid() -> None:
    best = begun()
    restarts = Restarts(best, np.random.default_rng(3))
    before = best.cost
    went_on = [restarts.round(best) for _ in range(4)]
    assert went_on[0]
    assert best.cost < 0.5 * before
    assert best.cost < 1.1 * best.bound.value
    assert verify_schedule(dump_schedule(best.schedule("auto", 3))) == []


def test_a_better_schedule_of_others_stays_while_it_goes_on() -> None:
    found = begun()
    Restarts(found, np.random.default_rng(3)).round(found)
    best = begun()
    best.offer(found.found()[0], "elsewhere", 0.1)
    assert Restarts(best, np.random.default_rng(4)).round(best)
    assert best.method == "elsewhere"


def test_it_does_not_begin_where_little_work_is_left() -> None:
    assert not Restarts(begun(50), np.random.default_rng(3)).able
    assert Restarts(begun(), np.random.default_rng(3)).able
