"""The list scheduler by priorities: its orders keep memory and its own times."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.formats import parse_profile
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.solver.construct.entry_orders import entry_orders
from pipeloom.solver.construct.list_parameters import Stages
from pipeloom.solver.construct.priority_scheduler import (
    Scratch,
    priority_schedule,
    random_priorities,
)


def _problem(seed: int, sizes: float) -> Problem:
    """Three ranks, three stages in any order, nine microbatches."""
    rng = np.random.default_rng(seed)
    placement = Placement.of_stages(rng.permutation(3).tolist())
    draw = rng.uniform(0.5, 6, (3, 4, 9))
    draw[:, :3, 5] = 7.0  # longer than any other: known to come before others can be in its way
    stages = [dict(zip(("t_f", "t_b", "t_w", "m_b"), rows, strict=True)) for rows in draw.tolist()]
    document = {"format": "pipeloom.profile", "version": 1, "ranks": 3, "t_comm": 0.3}
    profile = parse_profile(document | {"stages": [s | {"m_w": 0.4} for s in stages]}, "profile")
    return Problem(profile, 9, placement, (sizes,) * 3)


@pytest.mark.parametrize("seed", range(6))
def test_times_are_the_simulators_and_memory_is_kept(seed: int) -> None:
    problem = _problem(seed, 6.0 + 4.0 * (seed % 3))
    tables = Stages.of(problem)
    drawn = random_priorities(3, np.random.default_rng(seed), tuple(entry_orders(problem)))
    order, scratch = np.empty(81, dtype=np.int64), Scratch.of(3, 9)
    complete = 0
    for priorities in islice(drawn, 12):
        cost = priority_schedule(tables, priorities, False, order, scratch)
        if not np.isfinite(cost):
            continue
        complete += 1
        simulator = Simulator(problem, np.arange(0, 82, 27))
        assert simulator.cost(order) <= cost * (1 + 1e-9)
        assert (simulator.peak <= np.array(problem.memory_limit) * (1 + 1e-9)).all()
        for share, expected in ((1 - 1e-9, np.inf), (1 + 1e-9, cost)):
            most = share * cost
            assert priority_schedule(tables, priorities, False, order, scratch, most) == expected
    assert complete > 0


def test_a_long_microbatch_waits_for_none_that_yields() -> None:
    problem = replace(_problem(0, 1e9), placement=Placement.linear(3))
    priorities = next(random_priorities(3, np.random.default_rng(0), (np.arange(9),)))
    priorities.key[:, 5] = -9.0  # the sixth goes before all others
    priorities.offset[:], priorities.yields[:] = 0.0, 0.0
    order, scratch = np.empty(81, dtype=np.int64), Scratch.of(3, 9)
    priority_schedule(Stages.of(problem), priorities, False, order, scratch)
    simulator = Simulator(problem, np.arange(0, 82, 27))
    simulator.cost(order)
    ops = {int(op): at for at, op in enumerate(order)}
    packed = [5 << 23 | s << 3 for s in range(3)] + [5 << 23 | s << 3 | 1 for s in (2, 1, 0)]
    starts = [float(simulator.start[ops[op]]) for op in packed]
    assert starts == pytest.approx([0.0, 7.3, 14.6, 21.6, 28.9, 36.2])
