"""The order of a schedule's list of transfers, which is also their order on each wire."""

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

    The departures are simulated, with each wire serving transfers first come, first served. The new
    order of the list therefore never causes a deadlock, and simulating the copy gives the same
    times as this simulation. Without links or transfers, ``schedule`` itself is returned.

    If ops and transfers would wait for each other with any order of the list, the transfers that
    can never start come last, and the error of :func:`.simulator.simulate` names them. Raises
    InvalidScheduleError if a transfer is out of range or an op's input is never computed.
    """
    if schedule.problem.profile.links is None or not schedule.transfers:
        return schedule
    graph = ScheduleGraph.of(schedule)
    wires, times = transfer_wires(schedule), np.zeros((2, len(graph.duration)))
    return listed(schedule, first_come(*graph.successors, graph.duration, *wires, True, *times))


def transfer_wires(schedule: Schedule) -> Wires:
    """The wires of all nodes of the :class:`ScheduleGraph`; only transfers occupy wires."""
    pairs, which = once(schedule.transfers, _pairs)
    names = schedule.problem.profile.wires(pairs)
    return Wires.of(schedule.num_ops, names, which=which)


def _pairs(transfers: Sequence[Transfer]) -> tuple[list[Pair], IntArray]:
    """The distinct pairs (source, target) of the transfers, and each transfer's index into them."""
    known: dict[Pair, int] = {}
    which = [known.setdefault((t.source, t.target), len(known)) for t in transfers]
    return list(known), np.array(which, dtype=np.int64)


def listed(schedule: Schedule, order: IntArray) -> Schedule:
    """A copy of ``schedule``, without timing, whose transfers are listed as in ``order``.

    ``order``: nodes of the :class:`ScheduleGraph`, of which only transfers are used. Transfers that
    are not in it come last.
    """
    started = [i - schedule.num_ops for i in order.tolist() if i >= schedule.num_ops]
    never = sorted(set(range(len(schedule.transfers))) - set(started))
    transfers = tuple(schedule.transfers[i] for i in (*started, *never))
    return replace(schedule, transfers=transfers, timing=None)
