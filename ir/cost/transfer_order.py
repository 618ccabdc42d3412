"""The order in which a schedule lists its transfers, where those on one wire take turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..model.links import Pair
from ..model.ops import IntArray
from ..model.schedule import Schedule, Transfer, once
from .dependency_graph import ScheduleGraph
from .event_kernels import Wires, first_come


def in_sending_order(schedule: Schedule) -> Schedule:
    """``schedule`` with its transfers listed as they set out where each wire takes the first ready.

    So simulating it never deadlocks for its list, and gives those very times. Untimed; as it is
    where the profile has no links. Raises InvalidScheduleError for a transfer out of range or an
    op whose input is never made; where ops and transfers wait for each other whatever the list,
    those that can never start come last, for the simulator to name.
    """
    if schedule.problem.profile.links is None or not schedule.transfers:
        return schedule
    graph = ScheduleGraph.of(schedule)
    wires, times = transfer_wires(schedule), np.zeros((2, len(graph.duration)))
    return listed(schedule, first_come(*graph.successors, graph.duration, *wires, True, *times))


def transfer_wires(schedule: Schedule) -> Wires:
    """The wires of the nodes of a :class:`ScheduleGraph`, of which transfers alone have any."""
    pairs, which = once(schedule.transfers, _pairs)
    names = schedule.problem.profile.wires(pairs)
    return Wires.of(schedule.num_ops, names, which=which)


def _pairs(transfers: Sequence[Transfer]) -> tuple[list[Pair], IntArray]:
    """The different ways of transfers, from rank to rank, and which of them each goes."""
    known: dict[Pair, int] = {}
    which = [known.setdefault((t.source, t.target), len(known)) for t in transfers]
    return list(known), np.array(which, dtype=np.int64)


def listed(schedule: Schedule, order: IntArray) -> Schedule:
    """``schedule``, untimed, with its transfers as ``order`` of ops and transfers has them.

    Those that are not in it, as they can never start, come last.
    """
    started = [i - schedule.num_ops for i in order.tolist() if i >= schedule.num_ops]
    never = sorted(set(range(len(schedule.transfers))) - set(started))
    transfers = tuple(schedule.transfers[i] for i in (*started, *never))
    return replace(schedule, transfers=transfers, timing=None)
