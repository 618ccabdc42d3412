"""Versions of weights, and lagging gradients, where the optimizer steps after each microbatch.

A microbatch whose F ran before other microbatches' updates has its B with the weights that its F
used: its rank keeps that version until then (weight stashing, PipeDream, 2019). The gradient is
then added to newer weights than it was computed with.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import InputError
from .ops import Op, OpKind
from .schedule import Schedule, Updates


def staleness(schedule: Schedule) -> tuple[int, ...]:
    """The number of updates by which a microbatch's gradient lags at most, of each stage, (S,)."""
    return tuple(
        max((now - used for used, now, _ in _uses(schedule, stage)), default=0)
        for stage in range(schedule.problem.stages)
    )


def versions(schedule: Schedule) -> tuple[int, ...]:
    """The number of versions of each stage's weights that are kept at most at one time, (S,)."""
    return tuple(
        max((kept for _, _, kept in _uses(schedule, stage)), default=1)
        for stage in range(schedule.problem.stages)
    )


def refuse_where_stale(schedule: Schedule, **options: object) -> None:
    """Raises InputError for an option that needs all gradients, where updates come before."""
    if schedule.updates is Updates.ITERATION:
        return
    for name, value in options.items():
        if value:
            raise InputError(
                f"{name}: expected none where updates come after each microbatch, got {value}"
            )


def _uses(schedule: Schedule, stage: int) -> Iterator[tuple[int, int, int]]:
    """Before each update of ``stage``: the version that it is computed with, the newest one, and
    how many are kept: those that microbatches under way use, the newest, and the one being made.
    """
    if schedule.updates is Updates.ITERATION:
        return
    used: dict[int, int] = {}  # by microbatch, from its F on
    now = 0
    for op in _ops(schedule, stage):
        if op.kind is OpKind.F:
            used[op.microbatch] = now
        elif op.kind in (OpKind.W, OpKind.BW):
            version = used.pop(op.microbatch)
            yield version, now, len({*used.values(), now + 1})
            now += 1


def _ops(schedule: Schedule, stage: int) -> Iterator[Op]:
    for rank in range(schedule.problem.ranks):
        yield from (op for op in schedule.ops(rank) if op.stage == stage)
