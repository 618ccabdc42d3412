"""Samples from files of measured ops, whoever wrote them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.formats.fields import MOST_COST
from pipeloom.ir.formats.json_reader import show
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule


class Sample(NamedTuple):
    """An op as it ran, for so many milliseconds; ``step`` is counted from 0 in each file."""

    kind: OpKind
    stage: int
    step: int
    milliseconds: float


@dataclass(frozen=True, slots=True)
class MeasuredOps:
    """The ops of one file.

    ``ranks``: how many of them it tells of; ``rank``: which one, None where it does not say.
    ``chunks``: its stages are numbered on their rank alone: chunk k of rank r is stage k P + r.
    ``profile``: what it was planned for, where it says so. ``notes``: what a reader should know.
    ``peers``: the ranks of other stages, as messages to and from them say.
    ``where``: how messages call the file.
    """

    samples: Sequence[Sample]
    ranks: int = 1
    rank: int | None = None
    chunks: bool = False
    profile: Profile | None = None
    notes: tuple[str, ...] = ()
    where: str = ""
    peers: Mapping[int, int] = field(default_factory=dict)


def is_plan(schedule: Schedule) -> bool:
    """Whether its times are to the last digit those that follow from its profile."""
    times = schedule.timing
    if schedule.transfers or schedule.pairs or times is None:  # no trace has transfers or pairs
        return times is not None
    with suppress(InvalidScheduleError):  # weights were sent, of which a trace has no transfers
        return all(map(np.array_equal, times.end, simulate(schedule).end))
    return False


def numbered(ops: Iterable[tuple[Op, float]]) -> list[Sample]:
    """Ops with their milliseconds, as they ran: the n-th time that one runs is in step n."""
    seen: Counter[Op] = Counter()
    found = []
    for op, milliseconds in ops:
        found.append(Sample(op.kind, op.stage, seen[op], milliseconds))
        seen[op] += 1
    return found


def time_of(value: Any, where: str) -> float:
    """A number of milliseconds. Raises InputError, which ``where`` begins."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= MOST_COST:
        raise InputError(f"{where}: expected a finite number >= 0, got {show(value)}")
    return number
