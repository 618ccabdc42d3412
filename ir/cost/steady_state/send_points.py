"""The moments at which transfers leave: as planned at any time, or only between ops."""

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
    """The table of transfers for ranks that can send only between ops, as compiled programs do.

    A compiled program has a position in the rank's order for each send
    (:mod:`pipeloom.compiler.passes.place_messages`). A transfer that is passed on leaves after the
    ops that are planned to start before it does, and the next op waits for its arrival. A transfer
    that starts on the rank is sent up to :data:`SLACK` ops before it is planned to leave, but not
    before an earlier one on the same channel.

    The schedule's own times assume that transfers can also leave during ops. Our runtime sends in
    the order of the program: over Gloo from the rank's thread, over NCCL on streams that wait for
    the previous ops. Raises InvalidScheduleError if the schedule can never run.
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
    # ops of duration 0 could wait for each other
    past = np.maximum(started, ended)[onward]
    before[earlier[onward]] = np.minimum(before[earlier[onward]], past)
    channel = routes.source * len(schedule.order) + routes.target
    after, room = (_in_turn(counts, channel, leaves) for counts in (after, routes.room))
    return routes._replace(after=after, before=before, room=room)


def step_between_ops(schedule: Schedule) -> float:
    """Milliseconds of a steady step of the compiled program, which sends only between ops.

    Steps of different schedules are compared by this. Raises InvalidScheduleError if the schedule
    can never run.
    """
    return step_time(schedule, between_ops(schedule))


def _in_turn(counts: IntArray, channel: IntArray, leaves: FloatArray) -> IntArray:
    """Raise ``counts`` so that in each channel they do not fall in the order of departure.

    Messages that leave at the same time may leave in any order.
    """
    by = np.lexsort((leaves, channel))
    lift = channel[by] * (counts.max(initial=0) + 1)
    most = np.append(0, np.maximum.accumulate(counts[by] + lift))
    later = (np.diff(channel[by]) != 0) | (np.diff(leaves[by]) != 0)
    places = np.arange(len(by))
    places[1:] *= later
    first = np.maximum.accumulate(places)  # first of those that leave at the same time
    risen = np.empty_like(counts)
    risen[by] = np.maximum(counts[by], most[first] - lift)
    return risen
