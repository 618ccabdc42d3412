"""Annealing of orders together with their pairs, where pairs save time
(:mod:`pipeloom.ir.cost.overlap`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.model.ops import KIND_MASK, IntArray, OpKind, offsets_of, split_backwards
from pipeloom.ir.model.problem import Objective, Problem

from ..core.incumbent import Incumbent
from ..core.kernel_rng import seeded
from ..core.tolerances import ROUNDING
from .local_search import COLD, SLICE, SLICES
from .overlap_kernel import anneal_overlap

Mask = npt.NDArray[np.bool_]
Pairs = tuple[tuple[int, ...], ...]
Order = tuple[IntArray, ...]


class OverlapAnnealer:
    """Simulated annealing from the best order, with moves that let an F and a BW run at once or
    apart."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._costs, self._rng = Costs.of(problem), rng
        self._makespan = problem.objective is Objective.MAKESPAN
        self._state = seeded(rng)
        self._unit = float(self._costs.durations[:3].mean())
        stages, time = range(problem.stages), problem.profile.pair_time
        self._times = np.array([[time(f, b) for b in stages] for f in stages])
        self.able = overlap_saves(problem) and self._unit > 0.0

    def round(self, best: Incumbent) -> None:
        rows, pairs, _ = best.found()
        order, at_once, offsets = apart(rows, pairs)
        hot = self._unit * 10 ** self._rng.uniform(-3.0, -1.0)
        reach = int(self._rng.choice((3, 8, 20)))
        moves = max(100, SLICE // len(order))
        for piece in range(SLICES):
            c, found, found_at_once = self._costs, order.copy(), at_once.copy()
            warm = hot * COLD ** (piece / SLICES)
            cost = anneal_overlap(
                order, at_once, found, found_at_once, best.cost, offsets, c.durations,
                self._times, c.owner, c.into_f, c.into_b, c.m_b, c.m_w, c.limit * (1 + ROUNDING),
                self._makespan, warm, warm * COLD ** (1 / SLICES), moves, reach, self._state,
                best.interrupt.flag,
            )  # fmt: skip
            best.work.spend(moves * len(order))
            if cost < best.cost:
                rows, pairs = together(found, found_at_once, offsets)
                best.offer(rows, "search", pairs=pairs)
            if best.over():
                return


def apart(rows: Order, pairs: Pairs) -> tuple[IntArray, Mask, IntArray]:
    """All ranks' ops with each BW as B and W, where pairs begin, (N,) both, and where each rank's
    ops do.

    A pair is an F, a B and a W next to each other.
    """
    split = tuple(map(split_backwards, rows))
    offsets = offsets_of(split)
    at_once = np.zeros(offsets[-1], dtype=np.bool_)
    for first, row, places in zip(
        offsets[:-1].tolist(), rows, pairs or ((),) * len(rows), strict=True
    ):
        fused = (row & KIND_MASK) == OpKind.BW
        for place in places:
            at_once[first + place + int(fused[:place].sum())] = True
    return np.concatenate(split), at_once, offsets


def together(order: IntArray, at_once: Mask, offsets: IntArray) -> tuple[Order, Pairs]:
    """The inverse of :func:`apart`: a BW in pairs, B and W elsewhere."""
    rows, pairs = [], []
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        row, begins = order[first:last].copy(), np.flatnonzero(at_once[first:last])
        row[begins + 1] += OpKind.BW - OpKind.B
        pairs.append(tuple((begins - np.arange(len(begins))).tolist()))
        rows.append(np.delete(row, begins + 2))
    return tuple(rows), tuple(pairs)
