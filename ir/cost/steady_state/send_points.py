"""When transfers leave: at any moment, as the schedule plans it, or between ops alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import groupby

import numpy as np

from ...model.links import Pair
from ...model.schedule import Schedule, Timing, Transfer
from ...model.transfers import previous
from ..simulator import simulate
from .steady_state import step_time

SLACK = 1
"""Ops by which a rank sends earlier than planned what sets out from it."""


def posted_between_ops(schedule: Schedule) -> Schedule:
    """``schedule`` as ranks run it that do one thing at a time: untimed, with the same ops.

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
    changed = list(schedule.transfers)
    for x, earlier in enumerate(previous(schedule.transfers)):
        source, leaves = changed[x].source, float(timing.transfers[x, 0])
        after, past = _ops_by(source, leaves, timing)
        if earlier is None:
            after = min(after, _ended_by(source, leaves, timing) - SLACK)
        else:
            came = changed[earlier]
            changed[earlier] = replace(came, before=min(came.before, past))
        changed[x] = replace(changed[x], after=max(changed[x].after, after))
    return replace(schedule, transfers=_in_turn(changed, timing), timing=None)


def step_between_ops(schedule: Schedule) -> float:
    """Milliseconds of a steady step of the compiled program, which sends between ops: what steps
    are compared by.

    Raises InvalidScheduleError where the schedule can never run.
    """
    return step_time(posted_between_ops(schedule))


def _in_turn(transfers: list[Transfer], timing: Timing) -> tuple[Transfer, ...]:
    """No send and no receive of a channel before those of what is planned to leave earlier."""
    result = list(transfers)
    latest: defaultdict[Pair, tuple[int, int]] = defaultdict(lambda: (0, 0))
    leaves = timing.transfers[:, 0].tolist()
    in_order = sorted(range(len(result)), key=leaves.__getitem__)
    for _, at_once in groupby(in_order, leaves.__getitem__):
        before = dict(latest)  # what leaves at one moment may leave in any order
        for x in at_once:
            t = transfers[x]
            after, room = before.get(_channel(t), (0, 0))
            t = result[x] = replace(t, after=max(after, t.after), room=max(room, t.room))
            after, room = latest[_channel(t)]
            latest[_channel(t)] = max(after, t.after), max(room, t.room)
    return tuple(result)


def _channel(transfer: Transfer) -> Pair:
    return transfer.source, transfer.target


def _ended_by(rank: int, moment: float, timing: Timing) -> int:
    """How many of the rank's ops are planned to end by the moment."""
    return int(np.searchsorted(timing.end[rank], moment, "right"))


def _ops_by(rank: int, moment: float, timing: Timing) -> tuple[int, int]:
    """How many of the rank's ops are planned to start before the moment, and how many to start
    before or end by it: ops that take no time may wait for each other at one moment."""
    started = timing.start[rank] < moment
    return int(started.sum()), int((started | (timing.end[rank] <= moment)).sum())
