"""The order of a rank's ops if its microbatches run in rounds.

The microbatches of a round share the weights that arrive: all run F of a stage, then all run F of
the next stage, and so on, and BW back in the same way. More microbatches per round mean fewer
transfers and more memory for activations. The last ``deep`` stages are run by one microbatch after
the other, F's and BW's, so that only one microbatch holds the activations of these stages; their
weights must then stay for the whole round. One round of microbatches 0 and 1 with three stages,
with ``deep`` 1 and 2::

    0F0 0F1  1F0 1F1  2F0 2BW0 2F1 2BW1           1BW0 1BW1  0BW0 0BW1
    0F0 0F1  1F0 2F0 2BW0 1BW0  1F1 2F1 2BW1 1BW1            0BW0 0BW1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pipeloom.ir.cost.remat import held
from pipeloom.ir.model.ops import MICROBATCH_SHIFT, STAGE_SHIFT, IntArray, OpKind
from pipeloom.ir.model.problem import Problem

from ..core.options import Order
from ..core.tolerances import ROUNDING


def rows(problem: Problem, rounds: int, deep: int) -> Order:
    """Return the ops of every rank in ``rounds`` rounds, one packed array per rank.

    The microbatches of a round share the weights that arrive. A rank with fewer microbatches than
    ``rounds`` runs one round per microbatch. ``deep``: the number of last stages that are run by
    one microbatch after the other; from 1 to the number of stages.
    """
    owner = problem.owner[0]
    return tuple(
        _row(np.flatnonzero(owner == rank), problem.stages, rounds, deep)
        for rank in range(problem.ranks)
    )


def _row(microbatches: IntArray, stages: int, rounds: int, deep: int) -> IntArray:
    groups = [group for group in np.array_split(microbatches, rounds) if len(group)]
    pieces = [piece for group in groups for piece in _round(group, stages, deep)]
    return np.concatenate([np.empty(0, dtype=np.int64), *pieces])


def _round(group: IntArray, stages: int, deep: int) -> Iterator[IntArray]:
    turn = stages - deep
    for stage in range(turn):
        yield _ops(OpKind.F, [stage], group)
    there, back = range(turn, stages), range(stages - 1, turn - 1, -1)
    for microbatch in group:
        yield _ops(OpKind.F, there, microbatch)
        yield _ops(OpKind.BW, back, microbatch)
    for stage in reversed(range(turn)):
        yield _ops(OpKind.BW, [stage], group)


def _ops(kind: OpKind, stages: Sequence[int], microbatches: IntArray | int) -> IntArray:
    places = np.array(stages, dtype=np.int64) << STAGE_SHIFT | kind
    return (np.asarray(microbatches, dtype=np.int64) << MICROBATCH_SHIFT) + places


def within_limit(problem: Problem, order: Order) -> bool:
    """Return whether the activations on every rank fit in the rank's memory limit."""
    ranks = zip(held(problem, order), problem.memory_limit, strict=True)
    return all(row.max(initial=0.0) <= limit * (1 + ROUNDING) for row, limit in ranks)
