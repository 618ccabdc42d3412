"""Streams: microbatches that run each stage on the same ranks.

There is one, or one of each direction; where weights are passed, one per rank. Its microbatches are
alike, so that they can be named in the order of any class of ops, a kind of op of one stage.
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.ops import CLASS_MASK, MICROBATCH_SHIFT, IntArray, split_backwards
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem

from .options import Order


def streams_of(problem: Problem) -> list[list[int]]:
    """The microbatches that run each stage on the same ranks, in groups."""
    found: dict[tuple[int, ...], list[int]] = {}
    for j, owners in enumerate(problem.owner.T.tolist()):
        found.setdefault(tuple(owners), []).append(j)
    return list(found.values())


def stream_numbers(problem: Problem) -> IntArray:
    """The number in :func:`streams_of` of each microbatch's group, (M,)."""
    numbers = np.empty(problem.microbatches, dtype=np.int64)
    for number, own in enumerate(streams_of(problem)):
        numbers[own] = number
    return numbers


def as_many_each_way(problem: Problem) -> bool:
    """Whether activations are passed, and as many microbatches go each way."""
    if problem.placement.kind is PlacementKind.BIDIRECTIONAL:
        return len(set(map(len, streams_of(problem)))) == 1
    return problem.placement.passing is Passing.ACTIVATIONS


def class_of(stream: IntArray, ops: IntArray) -> IntArray:
    """Kind, stage and stream of packed ops as a number, ``stream`` being :func:`stream_numbers`."""
    return np.asarray((ops & CLASS_MASK) + (stream[ops >> MICROBATCH_SHIFT] << MICROBATCH_SHIFT))


def by_turns(problem: Problem, order: Order) -> Order:
    """The order with each BW as B and W, and the ops of a kind, stage and stream by microbatch:
    these are alike, so that the same times do."""
    stream, rows = stream_numbers(problem), []
    for row in map(split_backwards, order):
        of_class = class_of(stream, row)
        found = np.empty_like(row)
        found[np.argsort(of_class, kind="stable")] = row[np.lexsort((row, of_class))]
        rows.append(found)
    return tuple(rows)
