"""Packings from nothing: which sequences share a microbatch, before any schedule is known.

Costs are milliseconds of the busiest rank, lengths tokens; a microbatch is a list of sequences.
Each constructor returns None where it finds no packing within the most tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import ceil, inf
from typing import TypeAlias

import numpy as np

from pipeloom.ir.model.ops import FloatArray, IntArray

Microbatches: TypeAlias = list[list[int]]
Constructor: TypeAlias = Callable[[FloatArray, IntArray, int, float], Microbatches | None]


def longest_first(
    costs: FloatArray, lengths: IntArray, number: int, most: float
) -> Microbatches | None:
    """Each sequence, the most expensive first, to the cheapest microbatch that has room (LPT,
    Graham, 1969)."""
    heap = [(0.0, 0, j) for j in range(number)]
    tokens, found = [0] * number, [list[int]() for _ in range(number)]
    for i in np.argsort(-costs, kind="stable").tolist():
        full = []
        while heap and tokens[heap[0][2]] + lengths[i] > most:
            full.append(heappop(heap))
        if not heap:
            return None
        cost, count, j = heappop(heap)
        found[j].append(i)
        tokens[j] += int(lengths[i])
        for entry in (*full, (cost + float(costs[i]), count + 1, j)):
            heappush(heap, entry)
    return found


def differencing(
    costs: FloatArray, lengths: IntArray, number: int, most: float
) -> Microbatches | None:
    """The two partial packings that are least even joined, the fullest microbatch of one with the
    emptiest of the other, until one is left (Karmarkar and Karp, 1982)."""
    heap: list[tuple[float, int, list[float], Microbatches]] = [
        (-float(cost), i, [0.0] * (number - 1) + [float(cost)], [[]] * (number - 1) + [[i]])
        for i, cost in enumerate(costs)
    ]
    heapify(heap)
    for turn in range(len(costs), 2 * len(costs) - 1):
        _, _, sums, sets = heappop(heap)
        _, _, other_sums, other_sets = heappop(heap)
        rows = [
            (a + b, c + d)
            for a, b, c, d in zip(sums, reversed(other_sums), sets, reversed(other_sets),
                                  strict=True)
        ]  # fmt: skip
        rows.sort(key=lambda row: row[0])
        merged, packed = [row[0] for row in rows], [row[1] for row in rows]
        heappush(heap, (merged[0] - merged[-1], turn, merged, packed))
    return _within(_filled(heap[0][3]), lengths, most)


def by_length(
    costs: FloatArray, lengths: IntArray, number: int, most: float
) -> Microbatches | None:
    """Sorted by length, as many sequences in each microbatch."""
    parts = np.array_split(np.argsort(lengths, kind="stable"), number)
    return _within([part.tolist() for part in parts], lengths, most)


def first_fit(
    costs: FloatArray, lengths: IntArray, number: int, most: float
) -> Microbatches | None:
    """Each sequence in the order given to the first microbatch with room for its tokens: of as few
    tokens as lets all of them in."""
    total, longest = int(lengths.sum()), int(lengths.max())
    least = max(ceil(total / number), longest)
    lowest, highest = least, total if most == inf else int(most)
    if highest < least or _fitted(range(len(lengths)), lengths, number, highest) is None:
        return None
    while lowest < highest:
        middle = (lowest + highest) // 2
        if _fitted(range(len(lengths)), lengths, number, middle) is None:
            lowest = middle + 1
        else:
            highest = middle
    found = _fitted(range(len(lengths)), lengths, number, highest)
    return None if found is None else _filled(found)


def longest_fit(
    costs: FloatArray, lengths: IntArray, number: int, most: float
) -> Microbatches | None:
    """First fit, the longest first, where room is scarce."""
    order = np.argsort(-lengths, kind="stable").tolist()
    found = _fitted(order, lengths, number, most)
    return None if found is None else _filled(found)


def sorted_runs(
    costs: FloatArray, lengths: IntArray, number: int, most: float
) -> Microbatches | None:
    """Runs of the sequences sorted by length whose most expensive is as cheap as can be: dynamic
    programming's answer (DynaPipe, Jiang et al., 2024), found by bisection of that cost."""
    order = np.argsort(lengths, kind="stable")
    lowest, highest = float(costs.max()), float(costs.sum())

    def cut(dearest: float) -> Microbatches | None:
        return _cut(costs[order], lengths[order], number, dearest, most)

    if cut(highest) is None:
        return None
    while highest - lowest > 1e-9 * highest:
        middle = (lowest + highest) / 2
        if cut(middle) is None:
            lowest = middle
        else:
            highest = middle
    found = cut(highest)
    return None if found is None else _filled([order[each].tolist() for each in found])


def _cut(
    costs: FloatArray, lengths: IntArray, number: int, dearest: float, most: float
) -> Microbatches | None:
    """Runs of at most this cost and these tokens, each as long as it can be; None where there are
    more of them than ``number``."""
    found: Microbatches = []
    cost = tokens = inf
    for i in range(len(costs)):
        cost, tokens = cost + costs[i], tokens + lengths[i]
        if cost > dearest * (1 + 1e-12) or tokens > most:
            if len(found) == number:
                return None
            found.append([])
            cost, tokens = float(costs[i]), int(lengths[i])
        found[-1].append(i)
    return found + [[] for _ in range(number - len(found))]


def _fitted(
    order: Sequence[int], lengths: IntArray, number: int, most: float
) -> Microbatches | None:
    room, found = [most] * number, [list[int]() for _ in range(number)]
    for i in order:
        j = next((j for j in range(number) if room[j] >= lengths[i]), None)
        if j is None:
            return None
        room[j] -= int(lengths[i])
        found[j].append(i)
    return found


def _filled(found: Sequence[Sequence[int]]) -> Microbatches:
    """The same with a sequence of the fullest microbatch in each that is empty."""
    full = [list(each) for each in found]
    for each in full:
        if not each:
            each.append(max(full, key=len).pop())
    return full


def _within(found: Microbatches, lengths: IntArray, most: float) -> Microbatches | None:
    return found if all(int(lengths[each].sum()) <= most for each in found) else None


CONSTRUCTORS: dict[str, Constructor] = {
    "longest first": longest_first,
    "differencing": differencing,
    "sorted runs": sorted_runs,
    "first fit": first_fit,
    "by length": by_length,
    "longest fit": longest_fit,
}
"""By name; of :mod:`.search`'s starts, and what it is compared with."""
