"""In which order a schedule should list its transfers, where those on one wire wait for each
other."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..model.ops import FloatArray, IntArray
from ..model.schedule import Schedule
from ..model.wires import occupied
from .dependency_graph import by_origin, waits
from .event_kernels import first_come, numbered


def in_sending_order(schedule: Schedule) -> Schedule:
    """``schedule`` with its transfers listed as they set out where each wire takes the first ready.

    So simulating it never deadlocks for its list, and gives those very times. Untimed; as it is
    where the profile has no links. Raises InvalidScheduleError for a transfer out of range or an
    op whose input is never made; where ops and transfers wait for each other whatever the list,
    those that can never start come last, for the simulator to name.
    """
    if schedule.problem.profile.links is None or not schedule.transfers:
        return schedule
    wired = wiring(schedule)
    return listed(schedule, first_come(*wired, np.zeros(len(wired.duration))))


class Wiring(NamedTuple):
    """Arrays for a kernel: what waits for what, and who occupies which wires; ops first, then
    transfers."""

    first: IntArray
    to: IntArray
    delay: FloatArray
    missing: IntArray
    duration: FloatArray
    held_first: IntArray
    held: IntArray
    free: FloatArray


def wiring(schedule: Schedule) -> Wiring:
    """Of a schedule with transfers, whatever their order. Raises as :func:`in_sending_order`
    does."""
    _, durations, edges = waits(schedule)
    wires: list[tuple[str, ...]] = [()] * schedule.num_ops
    wires += occupied(schedule.problem.profile, [(t.source, t.target) for t in schedule.transfers])
    first, to, delay, missing = by_origin(edges, len(durations))
    return Wiring(first, to, delay, missing, durations, *numbered(wires))


def listed(schedule: Schedule, order: IntArray) -> Schedule:
    """``schedule``, untimed, with its transfers as ``order`` of ops and transfers has them.

    Those that are not in it, as they can never start, come last.
    """
    started = [i - schedule.num_ops for i in order.tolist() if i >= schedule.num_ops]
    never = sorted(set(range(len(schedule.transfers))) - set(started))
    transfers = tuple(schedule.transfers[i] for i in (*started, *never))
    return replace(schedule, transfers=transfers, timing=None)
