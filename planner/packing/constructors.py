"""Constructive heuristics for packings, which do not need a schedule.

``costs``: milliseconds of the busiest rank, (n,). ``lengths``: tokens, (n,). ``most``: maximum
tokens of a microbatch. Each heuristic returns None if it finds no packing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.ops import FloatArray, IntArray

from .costs import Microbatches, SequenceCosts


def constructed(costs: SequenceCosts, replicas: int, most: float) -> list[Microbatches]:
    """Packings of all replicas, one after the other: a balanced one, if found, and one of similar
    lengths per microbatch.

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
    """List scheduling: assign each sequence, in the given order, to the microbatch of least cost
    that has room.

    In descending order of cost this is LPT (Graham, 1969); with costs of 0 it is first fit.
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
    """Partition the sequences, sorted by length, into runs that minimize the cost of the most
    expensive run.

    The optimum is that of DynaPipe's dynamic program (Jiang et al., 2024), found by bisection.
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
    """Greedy runs, each as long as possible with at most this cost and these tokens."""
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
    """The microbatches; each empty one gets a sequence of the one with the most sequences."""
    full = [list(each) for each in found]
    for each in full:
        if not each:
            each.append(max(full, key=len).pop())
    return full


def dealt(packed: Microbatches, costs: FloatArray, replicas: int) -> Microbatches:
    """The microbatches ordered by replica, dealt round-robin in descending order of cost."""
    if replicas == 1:
        return packed
    order = sorted(packed, key=lambda each: -costs[each].sum())
    return [each for r in range(replicas) for each in order[r::replicas]]
