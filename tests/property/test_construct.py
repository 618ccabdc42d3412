"""Every setting of a constructor gives a valid schedule, or says that it gets stuck."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeloom.ir.schedule import Report, Schedule
from pipeloom.ir.schedule_format import dump_schedule
from pipeloom.ir.simulate import timed
from pipeloom.ir.verify import verify_schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.chain import Chain
from pipeloom.solver.construct import Constructor
from pipeloom.solver.construct import settings as family
from tests.property.test_bounds import problems

MUTATIONS = 30


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 8), st.integers(0, 1 << 30))
def test_what_is_built_is_valid_and_costs_what_it_says(
    data: st.DataObject, ranks: int, microbatches: int, seed: int
) -> None:
    problem = data.draw(problems(ranks, microbatches))
    chain = Chain.of(problem)
    assert chain is not None
    bound, rng = lower_bound(problem).value, np.random.default_rng(seed)
    constructor = Constructor(problem, chain)
    tried = list(family(chain, bound, chain.lags(problem.objective)))
    for first in (tried[0], tried[-1]):  # one of each constructor
        mutated = itertools.accumulate(
            range(MUTATIONS), lambda setting, _: setting.mutated(chain, rng), initial=first
        )
        for setting in mutated:
            rows = constructor.build(setting)
            if rows is None:
                continue
            schedule = timed(Schedule(problem, rows, report=Report(problem.objective, "search")))
            assert verify_schedule(dump_schedule(schedule)) == []
            assert schedule.timing is not None
            cost = schedule.timing.cost(problem.objective)
            assert abs(cost - constructor.cost(rows)) <= 1e-9 * cost
            assert cost >= bound * (1 - 1e-9)
