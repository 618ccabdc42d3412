"""Warm starts: schedules similar to 1F1B, for any memory limit, without a search.

They are built quickly, even for very many ops. A stage keeps ``ahead`` microbatches between F and
B. The number grows from the last stage to the first; if memory holds fewer microbatches than there
are stages, it grows in proportion to that memory. In further warm starts each stage keeps as many
microbatches as fit in memory, which is best if messages take long. An example with three stages
that keep 2, 2 and 1 microbatches, and each W right after its B::

    stage 0  F0 F1 .  .  .  B0 W0 F2 .  B1 W1 .  .  .  B2 W2
    stage 1  .  F0 F1 .  B0 W0 .  .  B1 W1 F2 .  B2 W2
    stage 2  .  .  F0 B0 W0 F1 B1 W1 .  .  .  F2 B2 W2
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import IntArray, OpKind
from pipeloom.ir.model.problem import Problem

from ..core.kernels import packed
from ..core.linear_instance import LinearInstance
from ..core.tolerances import ROUNDING

_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))


def warm_starts(problem: Problem, linear: LinearInstance) -> Iterator[tuple[IntArray, ...]]:
    """Yield warm starts: orders that fit in memory, each as one array of packed ops per rank."""
    stages = range(linear.stages)
    fit = int(linear.capacity.min())
    waits = (list(stages), [0] * linear.stages, [linear.microbatches] * linear.stages)
    slopes = (
        (1.0, 2.0) if fit >= min(linear.stages, linear.microbatches) else (fit / linear.stages,)
    )
    for slope, wait in product((*slopes, float(linear.microbatches)), waits):
        rows = [np.empty(0, dtype=np.int64)] * problem.ranks
        for i, ahead in enumerate(warm_up_counts(linear, slope)):
            rows[linear.ranks[i]] = alternating_row(linear, i, ahead, wait[i])
        yield tuple(rows)


def warm_up_counts(linear: LinearInstance, slope: float) -> list[int]:
    """Return the number of microbatches that each stage keeps between F and B.

    It is 1 on the last stage and grows by ``slope`` per stage before it, rounded down. It is at
    most the number of microbatches that fit in the memory of this stage and of every earlier one;
    otherwise an earlier stage would wait for a B of a later one, and that would wait for an F of
    the earlier one.
    """
    later = np.arange(linear.stages)[::-1]
    ahead = 1 + np.floor(slope * later + ROUNDING).astype(np.int64)
    return [int(n) for n in np.minimum(ahead, np.minimum.accumulate(linear.capacity))]


def alternating_row(linear: LinearInstance, stage: int, ahead: int, wait: int) -> IntArray:
    """Return the packed ops of a stage: ``ahead`` F's, B and F alternately, the remaining B's.

    W's run in between: ``wait`` is the maximum number of W's that are deferred; if an F needs their
    memory, W's run earlier. The stage's memory must hold ``ahead`` times M_B.
    """
    ops = np.empty(3 * linear.microbatches, dtype=np.int64)
    _fill(ops, stage, ahead, wait, linear.m_b[stage], linear.m_w[stage], linear.limit[stage])
    return ops


@kernel
def _fill(  # noqa: PLR0917
    ops: IntArray, stage: int, ahead: int, wait: int, m_b: float, m_w: float, limit: float
) -> None:
    """Write the ops of :func:`alternating_row` to ``ops``."""
    microbatches = len(ops) // 3
    at = forwards = weights = 0
    for k in range(microbatches):
        while forwards < min(k + ahead, microbatches):
            while weights < k and (1 + forwards - k) * m_b + (k - weights) * m_w > limit:
                ops[at] = packed(_W, stage, weights)
                weights, at = weights + 1, at + 1
            ops[at] = packed(_F, stage, forwards)
            forwards, at = forwards + 1, at + 1
        ops[at] = packed(_B, stage, k)
        at += 1
        while weights < k + 1 - wait:
            ops[at] = packed(_W, stage, weights)
            weights, at = weights + 1, at + 1
    for k in range(weights, microbatches):
        ops[at] = packed(_W, stage, k)
        at += 1
