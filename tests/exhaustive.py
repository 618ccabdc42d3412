"""Optima of tiny problems by trying every order: what bounds and search are held against."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numba
import numpy as np

from pipeloom.ir.costs import Costs
from pipeloom.ir.ops import IntArray, Op, OpKind
from pipeloom.ir.problem import Objective, Problem
from pipeloom.ir.simulate import run_kernel


def optimum(problem: Problem, *, in_order: bool) -> float:
    """The least cost over all orders of a problem with stage s on rank s.

    ``in_order``: only orders in which every rank takes the microbatches of each kind 0, 1, 2, …
    """
    costs = Costs.of(problem)
    ranks, m = problem.ranks, problem.microbatches
    words = [_words(m, in_order=in_order, first=s == 0) for s in range(ranks)]
    kept = [
        np.array([_packed(word, s) for word in words[s] if _fits(word, costs, s)])
        for s in range(ranks)
    ]
    counts = np.array([len(rows) for rows in kept])
    table = np.zeros((ranks, counts.max(), 3 * m), dtype=np.int64)
    for s, rows in enumerate(kept):
        table[s, : len(rows)] = rows
    return float(
        _least(
            table,
            counts,
            problem.objective is Objective.MAKESPAN,
            costs.durations,
            costs.owner,
            costs.into_f,
            costs.into_b,
            costs.m_b,
            costs.m_w,
        )
    )


_Word = tuple[tuple[OpKind, int], ...]


def _words(m: int, *, in_order: bool, first: bool) -> list[_Word]:
    """All orders of one rank's ops; on the first rank F's run 0, 1, 2, … as names do not matter."""
    found: list[_Word] = []

    def extend(word: _Word, done: Sequence[int]) -> None:
        if len(word) == 3 * m:
            found.append(word)
            return
        for j, steps in enumerate(done):
            if steps == 3:
                continue
            if (in_order or (first and steps == 0)) and any(k <= steps for k in done[:j]):
                continue
            extend((*word, (OpKind(steps), j)), [*done[:j], steps + 1, *done[j + 1 :]])

    extend((), [0] * m)
    return found


def _fits(word: _Word, costs: Costs, s: int) -> bool:
    m_b, m_w = costs.m_b[s], costs.m_w[s]
    change = {OpKind.F: m_b, OpKind.B: m_w - m_b, OpKind.W: -m_w}
    held = itertools.accumulate(change[kind] for kind, _ in word)
    return max(held) <= costs.limit[s] * (1 + 1e-9)


def _packed(word: _Word, s: int) -> IntArray:
    return np.array([Op(kind, s, j).packed for kind, j in word])


@numba.njit(cache=True)
def _least(table, counts, makespan, durations, owner, into_f, into_b, m_b, m_w):  # type: ignore[no-untyped-def]
    ranks, _, length = table.shape
    order = np.empty(ranks * length, dtype=np.int64)
    offsets = np.arange(ranks + 1) * length
    start, end = np.empty(ranks * length), np.empty(ranks * length)
    peak, position = np.empty(ranks), np.empty(ranks, dtype=np.int64)
    f_end, b_end = np.empty(owner.shape), np.empty(owner.shape)
    best = math.inf
    for index in range(np.prod(counts)):
        rest = index
        for r in range(ranks):
            order[r * length : (r + 1) * length] = table[r, rest % counts[r]]
            rest //= counts[r]
        if not run_kernel(
            order, offsets, durations, owner, into_f, into_b, m_b, m_w,
            start, end, peak, f_end, b_end, position,
        ):  # fmt: skip
            continue
        if makespan:
            cost = end.max() - start.min()
        else:
            cost = 0.0
            for r in range(ranks):
                cost = max(cost, end[(r + 1) * length - 1] - start[r * length])
        best = min(best, cost)
    return best
