"""The kernel that anneals exchanges of microbatches: two of them take each other's places.

They exchange them on all ranks alike, or for some kinds of op on some stages alone. Each order is
timed with its own times, and dropped where its memory exceeds a limit.
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.cost.simulator import run_kernel
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import MICROBATCH_SHIFT, IntArray

from ...core.kernels import CostArrays, State, fields, random
from ...core.relaxations import Mask
from .moves import cost_of


@kernel
def _exchange(  # noqa: PLR0917
    order: IntArray, place: IntArray, one: int, other: int, kinds: int, since: int, until: int
) -> None:
    """Two microbatches exchange places in the ops of these kinds (bits) on stages since..until."""
    by = (other - one) << MICROBATCH_SHIFT
    for kind in range(3):
        if kinds >> kind & 1:
            for stage in range(since, until):
                first, second = place[kind, stage, one], place[kind, stage, other]
                order[first] += by
                order[second] -= by
                place[kind, stage, one], place[kind, stage, other] = second, first


@kernel
def _draw(stages: int, wide: float, state: State) -> tuple[int, int, int]:
    """The kinds of op of an exchange, as bits, and its stages: all, or some of both."""
    if random(state) < wide:
        return 7, 0, stages
    kinds, since = 1 + int(random(state) * 7), 0
    if random(state) < 0.5:
        since = int(random(state) * stages)
        return kinds, since, since + 1 + int(random(state) * (stages - since))
    return kinds, since, stages


@kernel
def anneal_exchanges(  # noqa: PLR0917
    order: IntArray,  # (N,) packed F's, B's and W's, rank after rank; changed
    best: IntArray,  # (N,) out: the best order met, where it beats best_cost
    best_cost: float,
    offsets: IntArray,
    costs: CostArrays,
    makespan: bool,
    hot: float,  # temperature of the first and of the last move, in units of cost
    cold: float,
    moves: int,
    wide: float,  # share of the moves that are made of all ops of two microbatches
    state: State,  # changed
    stopped: Mask,  # (1,) turns true where another thread ends it all
) -> float:
    """Tries ``moves`` exchanges; returns the cost of ``best``."""
    durations, owner, into_f, into_b, m_b, m_w, limit = costs
    stages, microbatches = owner.shape
    ranks, size = len(limit), len(order)
    start, end = np.empty(size), np.empty(size)
    peak, position = np.empty(ranks), np.empty(ranks, dtype=np.int64)
    f_end, b_end = np.empty(owner.shape), np.empty(owner.shape)
    place = np.empty((3, stages, microbatches), dtype=np.int64)
    for at in range(size):
        kind, stage, microbatch = fields(order[at])
        place[kind, stage, microbatch] = at
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature, current = hot, np.inf
    for move in range(-1, moves):
        if stopped[0]:
            break
        one = other = since = until = kinds = 0
        if move >= 0:
            temperature *= cooling
            one = int(random(state) * microbatches)
            other = int(random(state) * microbatches)
            if one == other:
                continue
            kinds, since, until = _draw(stages, wide, state)
            _exchange(order, place, one, other, kinds, since, until)
        runs = run_kernel(
            order, offsets[:-1], offsets[1:], durations, owner, into_f, into_b, m_b, m_w, None,
            start, end, peak, f_end, b_end, position,
        )  # fmt: skip
        cost, value = np.inf, np.inf
        if runs and (move < 0 or (peak <= limit).all()):
            cost, value, _ = cost_of(offsets, offsets[1:], start, end, makespan)
        if move < 0 or value <= current - temperature * np.log(1.0 - random(state)):
            current = value
            if cost < best_cost:
                best_cost = cost
                best[:] = order
        else:
            _exchange(order, place, one, other, kinds, since, until)
    return best_cost
