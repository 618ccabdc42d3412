"""DynaPipe's scheduler for microbatches that differ, imported from a local copy of its source.

``dynapipe/schedule_opt`` is used unchanged: its cyclic scheduler orders the ops of each device, and
ops run as soon as their inputs are available, as in DynaPipe's wait-free executor. This module does
what DynaPipe's planner does around the scheduler. It groups microbatches by k-means on their times,
into four groups (three for more than 20 microbatches). It tries all orders of the groups, with
random orders within a group, and the given order; first without a memory limit, and with it if no
resulting schedule fits in memory. As in DynaPipe, there are only F and BW.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from pipeloom import Problem, Schedule
from pipeloom.ir import Costs, Op, OpKind, timed
from pipeloom.solver import objective_cost, within_memory

MANY, FEW_GROUPS, GROUPS = 20, 3, 4
ROUNDS = 30


def dynapipe(problem: Problem, folder: Path) -> float | None:
    """The lowest cost of DynaPipe's schedules that fit in memory, or None if none fits.

    ``folder``: the folder that contains DynaPipe's package.
    """
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    package = "dynapipe.schedule_opt"
    common = importlib.import_module(f"{package}.schedule_common")
    scheduler = importlib.import_module(f"{package}.cyclic_schedule").CyclicScheduler
    for limit in (np.inf, min(problem.memory_limit)):
        orders = (_ordered(problem, common, scheduler, limit, e) for e in _entries(problem))
        costs = [cost_of(Schedule(problem, rows)) for rows in orders if rows is not None]
        if found := [cost for cost in costs if cost is not None]:
            return min(found)
    return None


def _entries(problem: Problem) -> Iterator[list[int]]:
    """Yield the orders in which DynaPipe's planner lets microbatches enter the pipeline."""
    rng = np.random.default_rng(0)
    groups = _groups(problem)
    for order in permutations(range(len(groups))):
        shuffled = [rng.permutation(group) for group in groups]
        yield [int(j) for group in order for j in shuffled[group]]
    yield list(range(problem.microbatches))


def _groups(problem: Problem) -> list[list[int]]:
    """The microbatches of each group, by k-means on the times of F and BW on the first and the last
    stage."""
    f, b, w = Costs.of(problem).durations[:3]
    points = np.stack([f[0], f[-1], (b + w)[-1], (b + w)[0]], axis=1)
    number = FEW_GROUPS if len(points) > MANY else GROUPS
    centres = points[np.argsort(points.sum(axis=1))[:: max(1, len(points) // number)]][:number]
    for _ in range(ROUNDS):
        label = ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        for k in range(number):
            if (label == k).any():
                centres[k] = points[label == k].mean(axis=0)
    groups = [np.flatnonzero(label == k).tolist() for k in range(number)]
    return [group for group in groups if group]


def _ordered(
    problem: Problem, common: Any, scheduler: Any, limit: float, entry: list[int]
) -> tuple[Any, ...] | None:
    """The order of ops on each rank by DynaPipe's cyclic scheduler, or None if it finds none.

    ``entry``: the order in which microbatches enter; ``limit``: the memory limit.
    """
    costs, stages = Costs.of(problem), problem.stages
    f, b, w = costs.durations[:3]
    microbatches = [
        common.SchedulerMicrobatchSpec(
            name=str(j),
            fw_times=f[:, j].tolist(),
            fw_comm_times=costs.into_f[1:, j].tolist(),
            fw_stored_activation_size=costs.m_b[:, j].tolist(),
            fw_peak_activation_size=costs.m_b[:, j].tolist(),
            activation_shapes=[[(1, 1, 1)]] * stages,
            bw_times=(b + w)[::-1, j].tolist(),
            bw_comm_times=costs.into_b[:-1, j][::-1].tolist(),
        )
        for j in entry
    ]
    batch = common.SchedulerMinibatchSpec("", microbatches, list(range(stages)), [0.0] * stages)
    ran = scheduler(batch, False, memory_limit=limit).get_operator_order()
    if ran is None:
        return None
    rows = (
        [
            Op(OpKind.F if op.is_forward else OpKind.BW, rank, entry[op.microbatch]).packed
            for op in ran[common.ExecutorIndex(rank, 0)]
        ]
        for rank in range(stages)
    )
    return tuple(np.array(row, dtype=np.int64) for row in rows)


def cost_of(schedule: Schedule) -> float | None:
    """The simulated cost of a schedule that has no times; None if it does not fit in memory."""
    made = timed(schedule)
    return objective_cost(made) if within_memory(made.problem, made.known_timing) else None
