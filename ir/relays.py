"""What is passed on: at any moment, as the schedule plans it, or between ops alone."""

from __future__ import annotations

from dataclasses import replace

from .schedule import Schedule, Timing
from .simulate import simulate
from .travel import previous


def passing_between_ops(schedule: Schedule) -> Schedule:
    """``schedule`` as ranks run it that do one thing at a time: untimed, with the same ops.

    A compiled program names the place in a rank's order where it takes something on: after the
    ops planned to start before it leaves. So it leaves once the last of these has ended, and the
    next op waits for its coming. Where a processor of its own passes things on while an op runs
    (a GPU's copy engine), the schedule is what happens; where the rank itself does (Gloo), this is.
    Raises InvalidScheduleError where the schedule can never run.
    """
    timing = schedule.timing or simulate(schedule)
    changed = list(schedule.transfers)
    for x, earlier in enumerate(previous(schedule.transfers)):
        if earlier is not None:
            started, past = _ops_by(changed[x].source, float(timing.transfers[x, 0]), timing)
            came = changed[earlier]
            changed[earlier] = replace(came, before=min(came.before, past))
            changed[x] = replace(changed[x], after=max(changed[x].after, started))
    return replace(schedule, transfers=tuple(changed), timing=None)


def _ops_by(rank: int, moment: float, timing: Timing) -> tuple[int, int]:
    """How many of the rank's ops are planned to start before the moment, and how many to start
    before or end by it: ops that take no time may wait for each other at one moment."""
    started = timing.start[rank] < moment
    return int(started.sum()), int((started | (timing.end[rank] <= moment)).sum())
