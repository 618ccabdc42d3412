"""The list scheduler on microbatches that are unlike: its orders keep memory and its own times."""

from __future__ import annotations

import numpy as np
import pytest

from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.formats import parse_profile
from pipeloom.ir.model.ops import offsets_of
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.solver.construct.entry_orders import entry_orders
from pipeloom.solver.construct.list_scheduler import Stages, list_parameters, list_schedule
from pipeloom.solver.core.unlike import typical


@pytest.mark.parametrize("seed", range(6))
def test_times_are_the_simulators_and_memory_is_kept(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, microbatches = 3, 9
    placement = (Placement.linear(ranks), Placement.v(ranks))[seed % 2]
    number = ranks * (1 + seed % 2)
    draw = rng.uniform(0.5, 6, (number, 4, microbatches)).tolist()
    keys = ("t_f", "t_b", "t_w", "m_b")
    stages = [dict(zip(keys, rows, strict=True)) | {"m_w": 0.4} for rows in draw]
    document = {"format": "pipeloom.profile", "version": 1, "ranks": ranks, "t_comm": 0.3}
    profile = parse_profile(document | {"stages": stages}, "profile")
    limit = 6.0 * number / ranks + float(rng.uniform(0, 12))
    problem = Problem(profile, microbatches, placement, (limit,) * ranks)
    tables, entries = Stages.of(problem), list(entry_orders(problem))
    drawn = list_parameters(Stages.of(typical(problem)), rng, entries)
    order = np.empty(3 * number * microbatches, dtype=np.int64)
    ends, spans = np.empty((2, number, microbatches)), np.empty(ranks)
    complete = 0
    for parameters, _ in zip(drawn, range(12), strict=False):
        cost = list_schedule(tables, parameters, False, order, ends, spans)
        if not np.isfinite(cost):
            continue
        complete += 1
        rows = np.split(order, 3 * microbatches * tables.offsets[1:-1])
        simulator = Simulator(problem, offsets_of(rows))
        assert simulator.cost(order) <= cost * (1 + 1e-9)
        assert (simulator.peak <= limit * (1 + 1e-9)).all()
    assert complete > 0
