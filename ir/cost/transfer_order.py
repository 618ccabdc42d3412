"""The order of a schedule's list of transfers, in which those on one wire follow each other."""

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
    """A copy of ``schedule``, without timing, whose transfers are listed in the order of departure.

    The order is that in which each wire serves the first message that is ready. So the list never
    causes a deadlock, and the simulator gives the same times. Without links or transfers, the
    schedule is returned as it is. Raises InvalidScheduleError if a transfer is out of range or an
    op's input is never computed. If ops and transfers wait for each other in any order of the list,
    those that can never start come last, and the simulator names them.
    """
    if schedule.problem.profile.links is None or not schedule.transfers:
        return schedule
    graph = ScheduleGraph.of(schedule)
    wires, times = transfer_wires(schedule), np.zeros((2, len(graph.duration)))
    return listed(schedule, first_come(*graph.successors, graph.duration, *wires, True, *times))


def transfer_wires(schedule: Schedule) -> Wires:
    """The wires of the nodes of a :class:`ScheduleGraph`; only transfers have any."""
    pairs, which = once(schedule.transfers, _pairs)
    names = schedule.problem.profile.wires(pairs)
    return Wires.of(schedule.num_ops, names, which=which)


def _pairs(transfers: Sequence[Transfer]) -> tuple[list[Pair], IntArray]:
    """The distinct routes (source, target), and each transfer's index into them."""
    known: dict[Pair, int] = {}
    which = [known.setdefault((t.source, t.target), len(known)) for t in transfers]
    return list(known), np.array(which, dtype=np.int64)


def listed(schedule: Schedule, order: IntArray) -> Schedule:
    """A copy of ``schedule``, without timing, whose transfers are listed as in ``order``.

    ``order`` has nodes of ops and transfers. Transfers that are not in it come last.
    """
    started = [i - schedule.num_ops for i in order.tolist() if i >= schedule.num_ops]
    never = sorted(set(range(len(schedule.transfers))) - set(started))
    transfers = tuple(schedule.transfers[i] for i in (*started, *never))
    return replace(schedule, transfers=transfers, timing=None)
