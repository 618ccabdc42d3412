"""Streams: groups of microbatches that run each stage on the same rank.

There is one stream; if microbatches go in both directions, one per direction; if weights are
passed, one per rank. The microbatches of a stream are equal. A *class* is all ops of one kind,
stage and stream; its microbatches may be numbered in the order in which the ops of any class run.
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.ops import CLASS_MASK, MICROBATCH_SHIFT, IntArray, split_backwards
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem

from .options import Order


def streams_of(problem: Problem) -> list[list[int]]:
    """The streams: groups of microbatches that run each stage on the same rank.

    Each is a list of microbatches in ascending order.
    """
    found: dict[tuple[int, ...], list[int]] = {}
    for j, owners in enumerate(problem.owner.T.tolist()):
        found.setdefault(tuple(owners), []).append(j)
    return list(found.values())


def stream_numbers(problem: Problem) -> IntArray:
    """The index in :func:`streams_of` of each microbatch's stream, shape (M,)."""
    numbers = np.empty(problem.microbatches, dtype=np.int64)
    for number, own in enumerate(streams_of(problem)):
        numbers[own] = number
    return numbers


def as_many_each_way(problem: Problem) -> bool:
    """Whether activations are passed; if in two directions, by as many microbatches in each."""
    if problem.placement.kind is PlacementKind.BIDIRECTIONAL:
        return len(set(map(len, streams_of(problem)))) == 1
    return problem.placement.passing is Passing.ACTIVATIONS


def class_of(stream: IntArray, ops: IntArray) -> IntArray:
    """The class of each packed op: a number that encodes its kind, stage and stream.

    A stream is a group of microbatches on the same ranks. ``stream``: the result of
    :func:`stream_numbers`.
    """
    return np.asarray((ops & CLASS_MASK) + (stream[ops >> MICROBATCH_SHIFT] << MICROBATCH_SHIFT))


def by_turns(problem: Problem, order: Order) -> Order:
    """The order with each BW split into B and W, and microbatches renamed in ascending order.

    The k-th op of each kind and stage becomes that of the k-th microbatch of its stream, a group of
    equal microbatches on the same ranks. So the schedule takes the same time.
    """
    stream, rows = stream_numbers(problem), []
    for row in map(split_backwards, order):
        of_class = class_of(stream, row)
        found = np.empty_like(row)
        found[np.argsort(of_class, kind="stable")] = row[np.lexsort((row, of_class))]
        rows.append(found)
    return tuple(rows)
