"""The arrays of the annealing kernel (:func:`.annealing.anneal`)."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.remat import Choice
from pipeloom.ir.cost.simulator import RematArrays
from pipeloom.ir.model.ops import FloatArray, IntArray

from ...core.kernels import CostArrays, State

LONGEST = 4  # maximum number of consecutive ops that one move shifts


class Lists(NamedTuple):
    """The order of ops on all ranks, and the arrays that moves and evaluators work on.

    N ops are annealed, and T ops are timed. T = N, except with :class:`Filling`: then only F's and
    B's are annealed, and W's are timed as well.
    """

    order: IntArray  # (N,) packed ops, rank after rank
    offsets: IntArray  # (P + 1,) where each rank's ops begin in ``order``
    costs: CostArrays
    reach: int  # maximum distance of a move, in positions
    state: State  # state of the random number generator
    kept: IntArray  # (N,) the last accepted order
    saved: IntArray  # the ops that a move overwrites, to undo it
    done: npt.NDArray[np.int8]  # (S, M) scratch of :func:`.moves.keeps_rules`, all 0 outside it
    start: FloatArray  # (T,) start of each op
    end: FloatArray  # (T,) end of each op
    peak: FloatArray  # (P,) peak memory of each rank
    clock: FloatArray  # (P,) when each rank decides next, infinite if it waits for an input
    free: FloatArray  # (P,) when each rank's last op so far ends
    held: FloatArray  # (P,) memory that each rank holds
    f_end: FloatArray  # (S, M) end of each F, infinite if it has not run
    b_end: FloatArray  # (S, M) end of each B, likewise
    position: IntArray  # (P,) position of each rank's next op
    ready: IntArray  # (P,) stack of the ranks that can continue
    place: IntArray  # (2, S, M) positions of the F's (row 0) and B's (row 1) among the timed ops
    blocks: IntArray  # (T, 2) first and last position of each block of the critical path
    known: IntArray  # (2,) the rank whose last op decides the cost, and the number of blocks

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
    """The choices of recomputation, offload and fused backwards, if annealing may change them.

    A rank's part of :attr:`Lists.order` lists the ops that run, followed by the R's, O's, L's and
    W's that could run but do not.

    - ``arrays``: the simulator's arrays for remat; the first is the choice for each (stage,
      microbatch).
    - ``allowed``: whether each stage may use each choice, (4, S); the rows are STAYS, RECOMPUTED,
      OFFLOADED and FUSED.
    - ``stop``: for each rank, the position after the last op that runs, (P,).
    - ``kept_choice``, ``kept_stop``: the choices and ``stop`` of the last accepted order.
    - ``best_stop``: the ``stop`` of the best order found.
    """

    arrays: RematArrays
    allowed: npt.NDArray[np.bool_]
    stop: IntArray
    kept_choice: Choice
    kept_stop: IntArray
    best_stop: IntArray


PairTimes: TypeAlias = FloatArray
"""The time of a pair (an F and a BW that run together), by the stages of F and BW, (S, S)."""


class Filling(NamedTuple):
    """The arrays for orders of only F's and B's, where W's are filled in when an order is timed.

    - ``patience``: a rank that waits for its next input runs a W meanwhile if the input arrives no
      earlier than this multiple of T_W from now, (P,).
    - ``kept_patience``: the ``patience`` of the last accepted order.
    - ``order``: out, the packed ops including W's, (T,).
    - ``source``: out, for each op in ``order``, its position among the F's and B's; for a W, the
      position of the next F or B of its rank.
    - ``kept_source``: the ``source`` of the last accepted order.
    - ``queue``: the packed W's that wait to run; those of rank r are at positions ``oldest[r]`` up
      to ``newest[r]``, exclusive.
    - ``at``: the position in ``order`` at which the next op of each rank is written, (P,).
    - ``nothing``: zeros in the shape of M_W. They replace M_W when the memory of a moved order is
      checked, because waiting W's run before an F that would otherwise lack memory.
    - ``begins``: where each rank's ops begin in ``order``, (P + 1,).
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
