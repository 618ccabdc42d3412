"""Step times if transfers can leave only between ops, as in compiled programs."""

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
    """The schedule's table of transfers, changed so that ranks send only between ops.

    The times of a schedule assume that transfers can also leave during ops. But in a compiled
    program, each send has a position between the ops of its rank
    (:mod:`pipeloom.compiler.passes.place_messages`), and the runtime sends in this order: with Gloo
    from the rank's thread, with NCCL on streams that wait for the previous ops.

    A transfer of a tensor that the rank has received leaves after all ops that are planned to start
    before the departure; the next op then also waits for the arrival of this tensor on the rank.
    The first transfer of a tensor, which its source has not received, is sent up to :data:`SLACK`
    ops before its planned departure, but not before an earlier transfer on the same channel (pair
    of ranks).

    Raises InvalidScheduleError if the schedule can never run.
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
    # without ``ended``, ops of duration 0 could wait for each other
    past = np.maximum(started, ended)[onward]
    before[earlier[onward]] = np.minimum(before[earlier[onward]], past)
    channel = routes.source * len(schedule.order) + routes.target
    after, room = (_in_turn(counts, channel, leaves) for counts in (after, routes.room))
    return routes._replace(after=after, before=before, room=room)


def step_between_ops(schedule: Schedule) -> float:
    """:func:`.steady_state.step_time` of the compiled program, which sends only between ops, in ms.

    Schedules that send different tensors are compared by this time. Raises InvalidScheduleError if
    the schedule can never run.
    """
    return step_time(schedule, between_ops(schedule))


def _in_turn(counts: IntArray, channel: IntArray, leaves: FloatArray) -> IntArray:
    """The ``counts`` of n messages, raised so that they never decrease over time in a channel,
    (n,).

    ``counts``: a number of ops for each message, (n,). ``channel``, ``leaves``: the number of each
    message's channel and its time of departure, (n,) each. Messages that leave at the same time are
    not compared, as they may leave in any order.
    """
    by = np.lexsort((leaves, channel))
    lift = channel[by] * (counts.max(initial=0) + 1)
    most = np.append(0, np.maximum.accumulate(counts[by] + lift))
    later = (np.diff(channel[by]) != 0) | (np.diff(leaves[by]) != 0)
    places = np.arange(len(by))
    places[1:] *= later
    first = np.maximum.accumulate(places)  # of the messages that leave at the same time
    risen = np.empty_like(counts)
    risen[by] = np.maximum(counts[by], most[first] - lift)
    return risen
