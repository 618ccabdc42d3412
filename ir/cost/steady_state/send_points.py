"""Step times if transfers can leave only between ops, as in compiled programs."""

from __future__ import annotations

import numpy as np

from ...model.ops import IntArray
from ...model.schedule import Schedule, once
from ..dependency_graph import MessageTable
from ..messages.placed_messages import SLACK, PlacedMessages, Post
from ..simulator import timed
from .steady_state import step_time


def between_ops(schedule: Schedule) -> MessageTable:
    """The schedule's table of transfers, changed so that ranks send only between ops.

    The times of a schedule assume that transfers can also leave during ops. But in a compiled
    program, each send, receive and wait has a position between the ops of its rank
    (:mod:`..messages.placed_messages`), and the runtime sends in this order: with Gloo from the
    rank's thread, with NCCL on streams that wait for the previous ops.

    Raises InvalidScheduleError if the schedule can never run.
    """
    placed = PlacedMessages.of(schedule if schedule.timing else timed(schedule), SLACK)
    count = len(schedule.transfers)

    def positions(post: Post) -> IntArray:
        entries = (placed.post == post) & (placed.message < count)
        found = np.zeros(count, dtype=np.int64)
        found[placed.message[entries]] = placed.boundary[entries]
        return found

    return once(schedule.transfers, MessageTable.of_transfers)._replace(
        after=positions(Post.SEND),
        room=positions(Post.RECEIVE),
        before=positions(Post.WAIT_RECEIVE),
    )


def step_between_ops(schedule: Schedule) -> float:
    """:func:`.steady_state.step_time` of the compiled program, which sends only between ops, in ms.

    Schedules that send different tensors are compared by this time. Raises InvalidScheduleError if
    the schedule can never run.
    """
    return step_time(schedule, between_ops(schedule))
