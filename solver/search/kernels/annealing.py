"""The kernel of the local search: simulated annealing on the orders of all ranks.

The moves are those of :mod:`.moves`. If activations may be recomputed or offloaded
(:class:`RematState`), some moves change that choice for a few microbatches of a stage: their R's,
O's, L's and W's move between the part of the rank's list that runs and the unused part behind it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.simulator import run_kernel
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import IntArray

from ...core.kernels import CostArrays, State, random
from .moves import (
    EDGES,
    LONGEST,
    anywhere,
    at_an_edge,
    copy_places,
    cost_of,
    critical_blocks,
    keeps_rules,
    move_run,
    note,
    rank_of,
)
from .remat_moves import CHANGES, RUN, RematState, change_choice, way_of


@kernel
def anneal_kernel(  # noqa: PLR0917
    order: IntArray,  # (N,) packed ops, rank after rank; changed in place
    best: IntArray,  # (N,) out: the best order found, if it costs less than best_cost
    best_cost: float,
    offsets: IntArray,
    costs: CostArrays,
    remat: RematState | None,
    makespan: bool,
    hot: float,  # temperature of the first move, in units of cost; `cold`: of the last
    cold: float,
    moves: int,
    reach: int,  # largest distance of a move, in positions
    state: State,  # changed in place
    stopped: npt.NDArray[np.bool_],  # (1,) ends the search when another thread sets it
) -> float:
    """Simulated annealing with ``moves`` moves; returns the cost of ``best``."""
    durations, owner, into_f, into_b, m_b, m_w, limit = costs
    ranks, size = len(limit), len(order)
    start, end = np.empty(size), np.empty(size)
    peak, position = np.empty(ranks), np.empty(ranks, dtype=np.int64)
    f_end, b_end = np.empty(owner.shape), np.empty(owner.shape)
    done = np.zeros(owner.shape, dtype=np.int8)
    saved = np.empty(max(reach + LONGEST, 0 if remat is None else size), dtype=np.int64)
    if remat is not None:
        inner = remat[0]
        choice, best_choice, ways = inner[0], remat[1], remat[2]
        stop, best_stop = remat[3], remat[4]
        was = np.empty(RUN, dtype=np.int8)
    else:
        inner, stop = None, offsets[1:]
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature, current = hot, np.inf
    critical = number = 0
    place = np.empty((2, *owner.shape), dtype=np.int64)
    blocks = np.empty((size, 2), dtype=np.int64)
    note(order, 0, size - 1, place)
    for move in range(-1, moves):
        if stopped[0]:
            break
        low = high = 0
        rank = stage = since = until = stopped_at = 0
        changed = False
        if move >= 0:
            temperature *= cooling
            if remat is not None:
                changed = random(state) < CHANGES
                if changed:
                    stage = int(random(state) * owner.shape[0])
                    row = int(random(state) * ways.shape[0])
                    if not ways[row, stage]:
                        continue
                    wanted = way_of(row)
                    rank = owner[stage, 0]
                    since = int(random(state) * owner.shape[1])
                    until = min(owner.shape[1], since + 1 + int(RUN * random(state) ** 2))
                    was[: until - since] = choice[stage, since:until]
                    stopped_at = stop[rank]
                    low, high = offsets[rank], offsets[rank + 1] - 1
                    copy_places(order, low, high, saved, 0)
                    if not change_choice(
                        order, low, stop, rank, choice, stage, since, until, wanted, state
                    ):
                        continue
            if changed:
                first = low
            elif number > 0 and random(state) < EDGES:
                source, target = at_an_edge(blocks, number, reach, state)
                rank = rank_of(offsets, source)
                first, length = offsets[rank], stop[rank] - offsets[rank]
            else:
                rank = critical if random(state) < 0.3 else int(random(state) * ranks)
                first, length = offsets[rank], stop[rank] - offsets[rank]
                if length < 2:
                    continue
                source, target = anywhere(first, length, reach, state)
            if not changed:
                low, high = move_run(order, source, target, first, first + length, saved, state)
                if high < low:
                    continue
            until_here = stop[rank] - 1 if changed else high
            if not keeps_rules(order, first, low, until_here, m_b, m_w, limit[rank], remat, done):
                copy_places(saved, 0, high - low, order, low)
                if remat is not None and changed:
                    stop[rank] = stopped_at
                    choice[stage, since:until] = was[: until - since]
                continue
        runs = run_kernel(
            order, offsets[:-1], stop, durations, owner, into_f, into_b, m_b, m_w, inner,
            start, end, peak, f_end, b_end, position,
        )  # fmt: skip
        cost, value, longest = np.inf, np.inf, 0
        if runs:
            cost, value, longest = cost_of(offsets, stop, start, end, makespan)
        if move < 0 or value <= current - temperature * np.log(1.0 - random(state)):
            current = value
            critical = longest
            if runs:
                note(order, low, high, place)
                number = critical_blocks(
                    order, offsets, stop, owner, start, end, place, longest, blocks
                )
            if cost < best_cost:
                best_cost = cost
                copy_places(order, 0, size - 1, best, 0)
                if remat is not None:
                    best_choice[:] = choice
                    best_stop[:] = stop
        else:
            copy_places(saved, 0, high - low, order, low)
            if remat is not None and changed:
                stop[rank] = stopped_at
                choice[stage, since:until] = was[: until - since]
    return best_cost
