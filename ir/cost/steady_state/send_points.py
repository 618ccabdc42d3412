"""When transfers leave: at any moment, as the schedule plans it, or between ops alone."""

from __future__ import annotations

import numpy as np

from ...model.ops import FloatArray, IntArray
from ...model.schedule import Schedule, once
from ...model.transfers import earlier_ones
from ..dependency_graph import MessageTable
from ..messages.placed_messages import SLACK, counts_before
from ..simulator import simulate
from .steady_state import step_time


def between_ops(schedule: Schedule) -> MessageTable:
    """The transfers of ``schedule`` as ranks run it that do one thing at a time.

    A compiled program names the place in a rank's order where a transfer is sent
    (:mod:`pipeloom.compiler.passes.place_messages`). What is taken on leaves after the ops planned
    to start before it does, and the next op waits for its coming. What sets out here is sent up to
    :data:`SLACK` ops before it is planned to leave, and not before what goes the same way earlier.
    Where anything could be sent while an op runs, the schedule is what happens; our runtime sends
    in the program's order, over Gloo from the rank's thread, over NCCL on streams that wait for the
    ops before: this is what happens there. Raises InvalidScheduleError where the schedule can never
    run.
    """
    timing = schedule.timing or simulate(schedule)
    transfers = schedule.transfers
    leaves = timing.transfers[: len(transfers), 0]
    routes, earlier = once(transfers, MessageTable.of_transfers), once(transfers, earlier_ones)
    started = counts_before(timing.start, routes.source, leaves)
    ended = counts_before(timing.end, routes.source, leaves, "right")
    early = np.minimum(started, ended - SLACK)
    after = np.maximum(np.where(earlier < 0, early, started), routes.after)
    before, onward = routes.before.copy(), np.flatnonzero(earlier >= 0)
    # ops that take no time may wait for each other at one moment
    past = np.maximum(started, ended)[onward]
    before[earlier[onward]] = np.minimum(before[earlier[onward]], past)
    channel = routes.source * len(schedule.order) + routes.target
    after, room = (_in_turn(counts, channel, leaves) for counts in (after, routes.room))
    return routes._replace(after=after, before=before, room=room)


def step_between_ops(schedule: Schedule) -> float:
    """Milliseconds of a steady step of the compiled program, which sends between ops: what steps
    are compared by.

    Raises InvalidScheduleError where the schedule can never run.
    """
    return step_time(schedule, between_ops(schedule))


def _in_turn(counts: IntArray, channel: IntArray, leaves: FloatArray) -> IntArray:
    """No send and no receive of a channel before those of what is planned to leave earlier; what
    leaves at one moment may leave in any order."""
    by = np.lexsort((leaves, channel))
    lift = channel[by] * (counts.max(initial=0) + 1)
    most = np.append(0, np.maximum.accumulate(counts[by] + lift))
    later = (np.diff(channel[by]) != 0) | (np.diff(leaves[by]) != 0)
    places = np.arange(len(by))
    places[1:] *= later
    first = np.maximum.accumulate(places)  # of those that leave at the moment
    risen = np.empty_like(counts)
    risen[by] = np.maximum(counts[by], most[first] - lift)
    return risen
