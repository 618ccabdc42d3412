"""Simulated annealing of orders with recomputation, offload and fused backwards."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.cost.remat import choice_of
from pipeloom.ir.cost.simulator import remat_arrays
from pipeloom.ir.model.ops import IntArray, OpKind, fields_of, pack_all, split_backwards
from pipeloom.ir.model.problem import Problem

from ..core.incumbent import Incumbent
from ..core.methods import Method
from ..core.relaxations import fusible, offloadable, recomputable
from ..search.local_search import OrderAnnealer, cooled
from .relations import offer

FUSED = 3  # row of the choices that a stage may have


class RematAnnealer(OrderAnnealer):
    """Simulated annealing of orders with or without remat.

    ``every``: recompute whatever can be recomputed.
    """

    def __init__(self, problem: Problem, rng: np.random.Generator, every: bool) -> None:
        super().__init__(problem, rng)
        self._problem, self._every = problem, every
        again, out = recomputable(problem), offloadable(problem)
        if every:
            out &= ~again
        stays = ~again | (not every)
        self._ways = np.stack([stays, again, out, fusible(problem)])

    def round(self, best: Incumbent) -> None:
        c, problem = self._costs, self._problem
        start, _, _ = best.found()
        choice = choice_of(problem, start)
        rows = tuple(map(self._split, start))
        whole = [np.append(row, self._behind(rank, row)) for rank, row in enumerate(rows)]
        offsets = np.cumsum([0, *map(len, whole)]).astype(np.int64)
        order = np.concatenate(whole)
        stop = offsets[:-1] + np.array(list(map(len, rows)))
        hot, reach = self._draw()
        moves = max(100, int(best.slice // (2 * len(order))))
        for heat in cooled(hot):
            found, chosen, ends = order.copy(), choice.copy(), stop.copy()
            remat = remat_arrays(c, choice), chosen, self._ways, stop, ends
            cost = self._run(best, order, found, best.cost, offsets, remat, heat, moves, reach)
            best.work.spend(2 * moves * len(order))
            if cost < best.cost:
                ranks = zip(offsets.tolist(), ends.tolist(), strict=False)
                offer(best, tuple(found[a:b] for a, b in ranks), Method.ANNEAL, self._every)
            if best.over():
                return

    def _split(self, row: IntArray) -> IntArray:
        """The row with each BW as B and W, unless it is faster."""
        kinds, stages, _ = fields_of(row)
        fused = self._ways[FUSED, stages] & (kinds == OpKind.BW)
        pieces = np.split(row, np.flatnonzero(fused))
        whole = [part[: bool(i)] for i, part in enumerate(pieces)]
        rest = [split_backwards(part[bool(i) :]) for i, part in enumerate(pieces)]
        return np.concatenate([part for both in zip(whole, rest, strict=True) for part in both])

    def _behind(self, rank: int, row: IntArray) -> IntArray:
        """The rank's unused ops: R's, O's, L's and W's that its microbatches could have, (N,)."""
        microbatches = np.arange(self._problem.microbatches)
        _, again, out, fused = self._ways
        possible = {OpKind.R: again, OpKind.O: out, OpKind.L: out, OpKind.W: fused}
        ops = [
            pack_all(kind, stage, microbatches)
            for stage in self._problem.placement.stages_of(rank)
            for kind, stages in possible.items()
            if stages[stage]
        ]
        return np.setdiff1d(np.concatenate([*ops, row[:0]]), row)
