"""In which order a schedule should list its transfers, where those on one wire wait for each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .costs import Costs
from .first_come import first_come, numbered
from .schedule import Schedule
from .travel import travel_delays
from .waits import by_origin, chain, check_ranges, inputs, travel
from .wires import occupied


def in_sending_order(schedule: Schedule) -> Schedule:
    """``schedule`` with its transfers listed as they set out where each wire takes the first ready.

    So simulating it never deadlocks for its list, and gives those very times. Untimed; as it is
    where the profile has no links. Raises InvalidScheduleError for a transfer out of range or an
    op whose input is never made; where ops and transfers wait for each other whatever the list,
    those that can never start come last, for the simulator to name.
    """
    problem, transfers = schedule.problem, schedule.transfers
    if problem.profile.links is None or not transfers:
        return schedule
    check_ranges(schedule)
    costs = Costs.of(problem)
    flat = np.concatenate(schedule.order).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(ops) for ops in schedule.order])])
    durations = np.concatenate([costs.of_ops(flat), travel_delays(problem, transfers)])
    edges = [chain(offsets), *inputs(schedule, flat, costs), travel(schedule, offsets.tolist())]
    first, to, delay, missing = by_origin(edges, len(durations))
    wires: list[tuple[str, ...]] = [()] * len(flat)
    wires += occupied(problem.profile, [(t.source, t.target) for t in transfers])
    start = np.zeros(len(durations))
    order = first_come(first, to, delay, missing, durations, *numbered(wires), start)
    started = [i - len(flat) for i in order.tolist() if i >= len(flat)]
    never = sorted(set(range(len(transfers))) - set(started))
    listed = tuple(transfers[i] for i in (*started, *never))
    return replace(schedule, transfers=listed, timing=None)
