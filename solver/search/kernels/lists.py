"""The arrays of the annealing kernel."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.remat import Choice
from pipeloom.ir.cost.simulator import RematArrays
from pipeloom.ir.model.ops import FloatArray, IntArray

from ...core.kernels import CostArrays, State

LONGEST = 4  # most ops in a row that a move takes


class Lists(NamedTuple):
    """The orders of all ranks, and the arrays that moves and evaluators use.

    N ops are annealed, and T ops are timed: all, or also the W's that are filled in.
    """

    order: IntArray  # (N,) packed ops, rank after rank
    offsets: IntArray  # (P + 1,) where each rank's begin
    costs: CostArrays
    reach: int  # largest distance of a move, in positions
    state: State  # of the random numbers
    kept: IntArray  # (N,) the last accepted order
    saved: IntArray  # ops before a move
    done: npt.NDArray[np.int8]  # (S, M) the state of each microbatch; 0 before and after
    start: FloatArray  # (T,) times of each op, and
    end: FloatArray
    peak: FloatArray  # (P,)
    clock: FloatArray  # (P,) time at which each rank goes on, or inf,
    free: FloatArray  # is free,
    held: FloatArray  # and its memory
    f_end: FloatArray  # (S, M) ends of F's and B's
    b_end: FloatArray
    position: IntArray  # (P,) the next op of each rank
    ready: IntArray  # (P,) the ranks that go on next
    place: IntArray  # (2, S, M) positions of F's and B's among those timed
    blocks: IntArray  # (T, 2) first and last position of each block of the critical path
    known: IntArray  # (2,) the rank that decides the cost, and the number of blocks

    @classmethod
    def of(  # noqa: PLR0917
        cls,
        order: IntArray,
        offsets: IntArray,
        timed: int,
        costs: CostArrays,
        reach: int,
        state: State,
    ) -> Lists:
        shape, ranks = costs.owner.shape, len(costs.limit)
        start, end = np.zeros((2, timed))
        peak, clock, free, held = np.zeros((4, ranks))
        f_end, b_end = np.zeros((2, *shape))
        position, ready = np.zeros((2, ranks), np.int64)
        return cls(
            order, offsets, costs, reach, state,
            order.copy(), np.zeros(reach + LONGEST, np.int64), np.zeros(shape, np.int8),
            start, end, peak, clock, free, held, f_end, b_end, position, ready,
            np.zeros((2, *shape), np.int64), np.zeros((timed, 2), np.int64), np.zeros(2, np.int64),
        )  # fmt: skip


class Remat(NamedTuple):
    """Choices of recomputation and offload, if these are annealed as well.

    Behind the ops of a rank that run, its part of the order has the R's, O's, L's and W's that do
    not. ``arrays``: those of the simulator, with the choices. ``allowed``: the choices that each
    stage may have, (4, S): STAYS, RECOMPUTED, OFFLOADED, FUSED. ``stop``: the end of each rank's
    ops that run, (P,). ``kept_...``: of the last accepted order; ``best_...``: of the best one.
    """

    arrays: RematArrays
    allowed: npt.NDArray[np.bool_]
    stop: IntArray
    kept_choice: Choice
    kept_stop: IntArray
    best_stop: IntArray


PairTimes: TypeAlias = FloatArray
"""The time of a pair, by the stage of its F and that of its BW, (S, S)."""


class Filling(NamedTuple):
    """The W's, if only F's and B's are annealed and W's fill the time between them.

    ``patience``: a rank runs a W if its next input is at least so many T_W away, (P,). ``order``:
    out, with the W's, (T,). ``source``: index of each op among the F's and B's; for a W, of the
    next one. ``kept_...``: of the last accepted order. ``queue``: the W's that wait, of each rank
    from ``oldest`` to ``newest``; ``at``: where its next op is written. ``nothing``: M_W's of 0, as
    W's release it before the next F if needed. ``begins``: as :attr:`Lists.offsets`, with W's.
    """

    patience: FloatArray
    kept_patience: FloatArray
    order: IntArray
    source: IntArray
    kept_source: IntArray
    queue: IntArray
    oldest: IntArray
    newest: IntArray
    at: IntArray
    nothing: FloatArray
    begins: IntArray

    @classmethod
    def of(cls, patience: FloatArray, offsets: IntArray, costs: CostArrays) -> Filling:
        runs = int(offsets[-1])
        order, source, kept = np.zeros((3, 3 * runs // 2), np.int64)
        oldest, newest, at = np.zeros((3, len(patience)), np.int64)
        queue, nothing = np.empty(runs // 2, np.int64), np.zeros_like(costs.m_w)
        before = patience.copy()
        return cls(
            patience, before, order, source, kept, queue, oldest, newest, at, nothing,
            3 * offsets // 2,
        )  # fmt: skip
