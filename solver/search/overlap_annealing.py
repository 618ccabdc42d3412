"""Simulated annealing of orders with forward/backward overlap (:mod:`pipeloom.ir.cost.overlap`)."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.ops import KIND_MASK, IntArray, OpKind, offsets_of, split_backwards
from pipeloom.ir.model.problem import Problem

from ..core.incumbent import Incumbent, Pairs
from ..core.methods import Method
from ..core.options import Order
from ..core.relaxations import Mask
from .kernels.overlap import anneal_overlap
from .local_search import OrderAnnealer, cooled


class OverlapAnnealer(OrderAnnealer):
    """Simulated annealing from the best order, with moves that make and separate pairs."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        stages, time = range(problem.stages), problem.profile.pair_time
        self._times = np.array([[time(f, b) for b in stages] for f in stages])

    def round(self, best: Incumbent) -> None:
        rows, pairs, _ = best.found()
        order, at_once, offsets = split_pairs(rows, pairs)
        hot, reach = self._draw()
        moves = max(100, int(best.slice // len(order)))
        for heat in cooled(hot):
            found, found_at_once = order.copy(), at_once.copy()
            cost = anneal_overlap(
                order, at_once, found, found_at_once, best.cost, offsets, self._arrays,
                self._times, self._makespan, *heat, moves, reach, self._state, best.interrupt.flag,
            )  # fmt: skip
            best.work.spend(moves * len(order))
            if cost < best.cost:
                rows, pairs = join_pairs(found, found_at_once, offsets)
                best.offer(rows, Method.PAIR, pairs=pairs)
            if best.over():
                return


def split_pairs(rows: Order, pairs: Pairs) -> tuple[IntArray, Mask, IntArray]:
    """Convert an order to one flat array in which each BW is a B and a W; inverse:
    :func:`join_pairs`.

    Returns the packed ops, (N,), marks where pairs begin, (N,), and the offsets of the ranks, (P +
    1,). A pair is an F, a B and a W next to each other.
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


def join_pairs(order: IntArray, at_once: Mask, offsets: IntArray) -> tuple[Order, Pairs]:
    """The inverse of :func:`split_pairs`: pairs get a BW, other B's and W's stay separate."""
    rows, pairs = [], []
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        row, begins = order[first:last].copy(), np.flatnonzero(at_once[first:last])
        row[begins + 1] += OpKind.BW - OpKind.B
        pairs.append(tuple((begins - np.arange(len(begins))).tolist()))
        rows.append(np.delete(row, begins + 2))
    return tuple(rows), tuple(pairs)
