"""The families that fit a problem's placement and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import inf

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..core.incumbent import Incumbent
from ..core.streams import number_of_ops
from ..core.tolerances import ROUNDING, counts_within
from .base import Family
from .bidirectional.chimera import Chimera
from .registry import synchronous
from .v_shape.zb_v import ZBV
from .weights.fsdp import FSDP, PREFETCHES

MANY_OPS = 100_000  # with more ops a family takes seconds to build


def build_families(best: Incumbent) -> None:
    """Build every family that supports the problem of ``best``, and offer the schedules to it.

    A family whose schedule exceeds the memory limit is skipped. No further family is built once the
    solve is over (limit reached, interrupted, or proven optimal), unless ``best`` still has only
    the trivial schedule or none.
    """
    for family in families_of(best.problem):
        if best.over() and best.built:
            return
        if family.supports(best.problem) is None:
            with suppress(InfeasibleError):  # this family needs more memory; others may not
                schedule = family.build(best.problem)
                best.offer(schedule.order, family.name, pairs=schedule.pairs)


def families_of(problem: Problem) -> list[Family]:
    """Return the families to try, in the order in which to build them.

    Some of them may not support ``problem``. ZB-V takes longest to build; it comes last if the
    problem has more than :data:`MANY_OPS` ops.
    """
    found = [*synchronous(), *_sized(problem)]
    if number_of_ops(problem) > MANY_OPS:
        found.sort(key=lambda family: isinstance(family, ZBV))
    return found


def streaming_families(problem: Problem) -> Iterator[Schedule]:
    """Yield the schedule of each family that supports ``problem``, which has streamed weights.

    A family whose schedule exceeds the memory limit is skipped.
    """
    for family in (*synchronous(), *map(FSDP, PREFETCHES)):
        if family.supports(problem) is None:
            with suppress(InfeasibleError):
                yield family.build(problem)


def _sized(problem: Problem) -> Iterator[Family]:
    """Yield ZB-V and Chimera with parameters that suit the smallest memory limit of the ranks.

    Let C be the number of chunks (microbatches on one stage) that fit in this limit. ZB-V is
    yielded for C chunks if C is at least 2 and not its default, 2 P. Chimera is yielded with at
    most C / 2 microbatches of each direction, rounded down, if C is from 2 to P. Nothing is yielded
    without a memory limit.
    """
    largest = max(stage.m_b for stage in problem.profile.stages)
    if largest > 0 and problem.limited:
        chunks = int(counts_within(min(problem.memory_limit) * (1 + ROUNDING), largest, inf))
        if chunks >= ZBV.least and chunks != 2 * problem.ranks:
            yield ZBV(min(chunks, 2 * problem.microbatches))
        if 2 <= chunks <= problem.ranks:
            yield Chimera(most=chunks // 2)
