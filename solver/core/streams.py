"""Streams: groups of microbatches that run each stage on the same rank.

If microbatches go in both directions, there is one stream per direction; if weights are passed, one
per rank; otherwise, all microbatches are one stream. A *class* is the set of all ops of one kind,
stage and stream. If the microbatches of a stream are equal, the ops of a class may be renamed so
that they run in ascending order of microbatches.
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.ops import CLASS_MASK, MICROBATCH_SHIFT, IntArray, split_backwards
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem

from .options import Order


def streams_of(problem: Problem) -> list[list[int]]:
    """The streams: groups of microbatches that run each stage on the same rank.

    Returns, for each stream, the list of its microbatches in ascending order.
    """
    found: dict[tuple[int, ...], list[int]] = {}
    for j, owners in enumerate(problem.owner.T.tolist()):
        found.setdefault(tuple(owners), []).append(j)
    return list(found.values())


def number_of_ops(problem: Problem) -> int:
    """The number of F's, B's and W's of all stages and microbatches."""
    return 3 * problem.stages * problem.microbatches


def stream_numbers(problem: Problem) -> IntArray:
    """For each microbatch, the index of its stream in :func:`streams_of`, shape (M,)."""
    numbers = np.empty(problem.microbatches, dtype=np.int64)
    for number, own in enumerate(streams_of(problem)):
        numbers[own] = number
    return numbers


def as_many_each_way(problem: Problem) -> bool:
    """Whether the placement is bidirectional, with equally many microbatches per direction.

    For other placements, returns whether activations are passed, and no weights.
    """
    if problem.placement.kind is PlacementKind.BIDIRECTIONAL:
        return len(set(map(len, streams_of(problem)))) == 1
    return problem.placement.passing is Passing.ACTIVATIONS


def class_of(stream: IntArray, ops: IntArray) -> IntArray:
    """The class of each packed op in ``ops``: a number that encodes its kind, stage and stream.

    ``stream``: for each microbatch, the index of its stream, as :func:`stream_numbers` returns it.
    """
    return np.asarray((ops & CLASS_MASK) + (stream[ops >> MICROBATCH_SHIFT] << MICROBATCH_SHIFT))


def by_turns(problem: Problem, order: Order) -> Order:
    """A copy of ``order`` with each BW split into B and W, and microbatches renamed by position.

    The k-th op of each kind, stage and stream becomes that of the stream's k-th microbatch
    (:func:`streams_of`). If the microbatches of each stream are equal, the cost is the same.
    """
    stream, rows = stream_numbers(problem), []
    for row in map(split_backwards, order):
        of_class = class_of(stream, row)
        found = np.empty_like(row)
        found[np.argsort(of_class, kind="stable")] = row[np.lexsort((row, of_class))]
        rows.append(found)
    return tuple(rows)
