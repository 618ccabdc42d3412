"""Simulated annealing of the order together with what is recomputed, offloaded or fused."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.cost.remat import choice_of
from pipeloom.ir.cost.simulator import remat_arrays, simulate
from pipeloom.ir.model.ops import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    IntArray,
    OpKind,
    split_backwards,
)
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..core.incumbent import Incumbent
from ..core.methods import Method
from ..core.options import Order
from ..core.relaxations import fusible, offloadable, recomputable
from ..search.local_search import OrderAnnealer, cooled

FUSED = 3  # the row of the choices that stages may have


class RematAnnealer(OrderAnnealer):
    """Anneals any order, with remat or without. ``every``: stages are recomputed where they may."""

    def __init__(self, problem: Problem, rng: np.random.Generator, every: bool) -> None:
        super().__init__(problem, rng)
        self._problem = problem
        again, out = recomputable(problem), offloadable(problem)
        if every:
            out &= ~again
        stays = ~again | (not every)
        self._ways = np.stack([stays, again, out, fusible(problem)])

    def anneal(self, best: Incumbent, start: Order) -> Order:
        """The best order met from ``start`` on."""
        c, problem = self._costs, self._problem
        choice = choice_of(problem, start)
        rows = tuple(map(self._split, start))
        whole = [np.append(row, self._behind(rank, row)) for rank, row in enumerate(rows)]
        offsets = np.cumsum([0, *map(len, whole)]).astype(np.int64)
        order = np.concatenate(whole)
        stop = offsets[:-1] + np.array(list(map(len, rows)))
        hot, reach = self._draw()
        moves = max(100, int(best.slice // (2 * len(order))))
        reached, least = start, simulate(Schedule(problem, start)).cost(problem.objective)
        for heat in cooled(hot):
            found, chosen, ends = order.copy(), choice.copy(), stop.copy()
            remat = remat_arrays(c, choice), chosen, self._ways, stop, ends
            cost = self._run(best, order, found, least, offsets, remat, heat, moves, reach)
            best.work.spend(2 * moves * len(order))
            if cost < least:
                least = cost
                ranks = zip(offsets.tolist(), ends.tolist(), strict=False)
                reached = tuple(found[a:b] for a, b in ranks)
                best.offer(reached, Method.ANNEAL, cost)
            if best.over():
                break
        return reached

    def _split(self, row: IntArray) -> IntArray:
        """The row with each BW as B and W, where it takes no less."""
        fused = self._ways[FUSED, row >> STAGE_SHIFT & STAGE_MASK] & (row & KIND_MASK == OpKind.BW)
        pieces = np.split(row, np.flatnonzero(fused))
        whole = [part[: bool(i)] for i, part in enumerate(pieces)]
        rest = [split_backwards(part[bool(i) :]) for i, part in enumerate(pieces)]
        return np.concatenate([part for both in zip(whole, rest, strict=True) for part in both])

    def _behind(self, rank: int, row: IntArray) -> IntArray:
        """The ops of the rank that might run as well, (N,)."""
        microbatches = np.arange(self._problem.microbatches) << MICROBATCH_SHIFT
        _, again, out, fused = self._ways
        possible = {OpKind.R: again, OpKind.O: out, OpKind.L: out, OpKind.W: fused}
        ops = [
            microbatches | stage << STAGE_SHIFT | kind
            for stage in self._problem.placement.stages_of(rank)
            for kind, stages in possible.items()
            if stages[stage]
        ]
        return np.setdiff1d(np.concatenate([*ops, row[:0]]), row)
