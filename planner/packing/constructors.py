"""Heuristics that construct packings of sequences into microbatches and do not need a schedule.

``costs``: milliseconds that each sequence adds to the busiest rank, (n,). ``lengths``: tokens of
each sequence, (n,). ``number``: number of microbatches. ``most``: maximum tokens of a microbatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.ops import FloatArray, IntArray

from .costs import Microbatches, SequenceCosts


def constructed(costs: SequenceCosts, replicas: int, most: float) -> list[Microbatches]:
    """Return packings, each with the microbatches of all replicas, one replica after the other: a
    balanced packing, if one is found, and one with sequences of similar lengths in each microbatch.

    Raises InputError if there are fewer sequences than microbatches, and InfeasibleError if no
    packing with at most ``most`` tokens per microbatch is found.
    """
    busiest, lengths = costs.busiest, costs.lengths
    number, none = costs.problem.microbatches * replicas, np.zeros(len(lengths))
    if len(lengths) < number:
        raise InputError(f"microbatches: expected at most {len(lengths)} in all, got {number}")
    made = (
        greedy(busiest, np.argsort(-busiest, kind="stable"), lengths, number, most)
        or greedy(none, np.argsort(-lengths, kind="stable"), lengths, number, most),
        sorted_runs(busiest, lengths, number, most),
    )
    found = [dealt(each, busiest, replicas) for each in made if each is not None]
    if not found:
        raise InfeasibleError(
            f"no packing found: {number} microbatches of at most {int(most)} tokens"
        )
    return found


def greedy(
    costs: FloatArray, order: IntArray, lengths: IntArray, number: int, most: float
) -> Microbatches | None:
    """Assign each sequence, in the given order, to the microbatch with the lowest cost that has
    room for it (list scheduling). Returns None if a sequence fits in no microbatch.

    In descending order of cost this is the heuristic LPT (Graham, 1969); if all costs are 0, it is
    first fit.
    """
    tokens, sums = np.zeros((2, number))
    found: Microbatches = [[] for _ in range(number)]
    for i in order.tolist():
        j = int(np.where(tokens + lengths[i] <= most, sums, inf).argmin())
        if tokens[j] + lengths[i] > most:
            return None
        found[j].append(i)
        tokens[j] += lengths[i]
        sums[j] += costs[i]
    return _filled(found)


def sorted_runs(
    costs: FloatArray, lengths: IntArray, number: int, most: float
) -> Microbatches | None:
    """Sort the sequences by length and cut them into ``number`` groups of consecutive sequences
    such that the cost of the most expensive group is minimal. Returns None if ``number`` groups of
    at most ``most`` tokens do not suffice.

    The minimum is the one that DynaPipe finds by dynamic programming (Jiang et al., 2024); here, it
    is found by bisection.
    """
    order = np.argsort(lengths, kind="stable")
    low, high = float(costs.max()), float(costs.sum())
    found = None
    while found is None or high - low > 1e-9 * high:
        dearest = high if found is None else (low + high) / 2
        runs = _runs(costs[order], lengths[order], dearest, most)
        if len(runs) <= number:
            found, high = runs, dearest
        elif found is None:
            return None
        else:
            low = dearest
    empty: Microbatches = [[]] * (number - len(found))
    return _filled([order[run].tolist() for run in found] + empty)


def _runs(costs: FloatArray, lengths: IntArray, dearest: float, most: float) -> Microbatches:
    """Cut the sequences, in the given order, into groups of consecutive sequences, each as long as
    possible with a cost of at most ``dearest`` and at most ``most`` tokens."""
    found: Microbatches = []
    cost = tokens = inf
    for i in range(len(costs)):
        cost, tokens = cost + costs[i], tokens + lengths[i]
        if cost > dearest * (1 + 1e-12) or tokens > most:
            found.append([])
            cost, tokens = costs[i], lengths[i]
        found[-1].append(i)
    return found


def _filled(found: Sequence[Sequence[int]]) -> Microbatches:
    """Return the microbatches ``found``, but give each empty one a sequence from the microbatch
    with the most sequences."""
    full = [list(each) for each in found]
    for each in full:
        if not each:
            each.append(max(full, key=len).pop())
    return full


def dealt(packed: Microbatches, costs: FloatArray, replicas: int) -> Microbatches:
    """Distribute the microbatches round-robin over replicas, in descending order of cost. Returns
    the microbatches of the first replica, then those of the second, and so on."""
    if replicas == 1:
        return packed
    order = sorted(packed, key=lambda each: -costs[each].sum())
    return [each for r in range(replicas) for each in order[r::replicas]]
