"""Packings from nothing: which sequences share a microbatch, before any schedule is known.

``costs`` are milliseconds of the busiest rank, (n,), ``lengths`` tokens, (n,), ``most`` the tokens
of a microbatch at most. Each constructor returns None where it finds no packing within these.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.ops import FloatArray, IntArray

from .costs import Microbatches, SequenceCosts


def constructed(costs: SequenceCosts, replicas: int, most: float) -> list[Microbatches]:
    """Packings of all replicas, one after the other: an even one, where there is one, and an uneven
    one. Raises InputError for fewer sequences than microbatches, and InfeasibleError where neither
    keeps the ``most`` tokens."""
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
    """Each sequence, in this order, to the microbatch of least cost that has room: the most
    expensive first is LPT (Graham, 1969), and costs of 0 are first fit."""
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
    """Runs of the sequences sorted by length whose most expensive is as cheap as can be: dynamic
    programming's answer (DynaPipe, Jiang et al., 2024), found by bisection of that cost."""
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
    """Runs of at most this cost and these tokens, each as long as it can be."""
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
    """The same with a sequence of the fullest microbatch in each that is empty."""
    full = [list(each) for each in found]
    for each in full:
        if not each:
            each.append(max(full, key=len).pop())
    return full


def dealt(packed: Microbatches, costs: FloatArray, replicas: int) -> Microbatches:
    """The microbatches replica by replica, dealt in turn, the most expensive first."""
    if replicas == 1:
        return packed
    order = sorted(packed, key=lambda each: -costs[each].sum())
    return [each for r in range(replicas) for each in order[r::replicas]]
