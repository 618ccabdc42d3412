"""Simulated annealing of orders with recomputation, offload and fused backwards."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import choice_of
from pipeloom.ir.cost.simulator import remat_arrays
from pipeloom.ir.model.ops import IntArray, OpKind, fields_of, offsets_of, pack_all, split_backwards
from pipeloom.ir.model.problem import Problem

from ..core.incumbent import Incumbent
from ..core.options import Order
from ..core.relaxations import fusible, offloadable, recomputable
from ..search.kernels.lists import Remat
from ..search.local_search import Annealer
from .relations import AnnealingStarts

FUSED = 3  # row of `Remat.allowed` for fused backwards


class RematAnnealer(Annealer):
    """Simulated annealing of the best orders, and of the choice for each microbatch and stage.

    The choice is whether the activations stay, are recomputed or are offloaded, and whether the
    backward is fused. ``starts``: the orders from which annealing starts.
    """

    def __init__(self, problem: Problem, rng: np.random.Generator, starts: AnnealingStarts) -> None:
        super().__init__(problem, rng)
        self._starts, self._left, every = starts, list[tuple[float, Order]](), starts.every
        again, out = recomputable(problem), offloadable(problem)
        if every:
            out &= ~again
        self._allowed = np.stack([~again | (not every), again, out, fusible(problem)])

    def round(self, best: Incumbent) -> None:
        self._left = self._left or self._starts.best()
        least, start = self._left.pop(0)
        choice = choice_of(self._problem, start)
        rows = tuple(map(self._split, start))
        whole = [np.append(row, self._behind(rank, row)) for rank, row in enumerate(rows)]
        offsets = offsets_of(whole)
        stop = offsets[:-1] + np.array(list(map(len, rows)))
        arrays = remat_arrays(Costs.of(self._problem), choice)
        remat = Remat(arrays, self._allowed, stop, choice.copy(), stop.copy(), stop.copy())
        self._anneal(best, np.concatenate(whole), offsets, remat, least=least)

    def _offer(self, best: Incumbent, order: IntArray, offsets: IntArray, ends: IntArray) -> None:
        ranks = zip(offsets.tolist(), ends.tolist(), strict=False)
        self._starts.offer(tuple(order[a:b].copy() for a, b in ranks), self.method)

    def _split(self, row: IntArray) -> IntArray:
        """Return the row with BW's replaced by B and W, except on stages where BW is faster."""
        kinds, stages, _ = fields_of(row)
        fused = self._allowed[FUSED, stages] & (kinds == OpKind.BW)
        pieces = np.split(row, np.flatnonzero(fused))
        whole = [part[: bool(i)] for i, part in enumerate(pieces)]
        rest = [split_backwards(part[bool(i) :]) for i, part in enumerate(pieces)]
        return np.concatenate([part for both in zip(whole, rest, strict=True) for part in both])

    def _behind(self, rank: int, row: IntArray) -> IntArray:
        """Return the packed ops that could be added to a rank's ``row``, (N,).

        They are the R's, O's, L's and W's that the rank's stages may run and that are not in
        ``row``.
        """
        microbatches = np.arange(self._problem.microbatches)
        _, again, out, fused = self._allowed
        possible = {OpKind.R: again, OpKind.O: out, OpKind.L: out, OpKind.W: fused}
        ops = [
            pack_all(kind, stage, microbatches)
            for stage in self._problem.placement.stages_of(rank)
            for kind, stages in possible.items()
            if stages[stage]
        ]
        return np.setdiff1d(np.concatenate([*ops, row[:0]]), row)
