"""Measured ops, in a form that does not depend on the kind of file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.documents.fields import MOST_COST
from pipeloom.ir.errors import InputError, InvalidScheduleError, show
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule


class Sample(NamedTuple):
    """One execution of an op on ``stage``, with its time in milliseconds. ``step`` counts the steps
    of each file from 0."""

    kind: OpKind
    stage: int
    step: int
    milliseconds: float


@dataclass(frozen=True, slots=True)
class MeasuredOps:
    """The ops of one file.

    ``ranks``: number of ranks in the file. ``profile``: the profile for which a measured schedule
    was planned; None for a trace. ``notes``: notes for the user. ``where``: the file's name in
    messages. ``peers``: for each stage to which messages in the file are sent, the rank of that
    stage.
    """

    samples: Sequence[Sample]
    ranks: int = 1
    profile: Profile | None = None
    notes: tuple[str, ...] = ()
    where: str = ""
    peers: Mapping[int, int] = field(default_factory=dict)


def is_plan(schedule: Schedule) -> bool:
    """Return whether the schedule's times are planned, not measured: whether they equal those that
    the simulator computes from its profile."""
    times = schedule.timing
    if schedule.transfers or schedule.pairs or times is None:  # traces have neither
        return times is not None
    with suppress(InvalidScheduleError):  # a trace of passed weights lacks transfers
        return all(map(np.array_equal, times.end, simulate(schedule).end))
    return False


def numbered(ops: Iterable[tuple[Op, float]]) -> list[Sample]:
    """Return one sample per item of ``ops``: pairs of an op and its time in milliseconds, in the
    order in which the ops ran. The n-th pair with the same op, counted from 0, is in step n."""
    seen: Counter[Op] = Counter()
    found = []
    for op, milliseconds in ops:
        found.append(Sample(op.kind, op.stage, seen[op], milliseconds))
        seen[op] += 1
    return found


def time_of(value: Any, where: str) -> float:
    """Return ``value``, a time in milliseconds, as a number. Raises InputError with the prefix
    ``where`` if it is not a finite number >= 0."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= MOST_COST:
        raise InputError(f"{where}: expected a finite number >= 0, got {show(value)}")
    return number
