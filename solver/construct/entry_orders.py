"""Constructors of the order in which microbatches that are unlike enter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import IntArray
from pipeloom.ir.model.problem import Problem


def entry_orders(problem: Problem) -> Iterator[IntArray]:
    """Orders of entry, (M,) each: the microbatch that enters first, second and so on.

    As given; the shortest first; the longest first; the longest in the middle, or at both ends; a
    long and a short one in turn; and by Johnson's rule (1954) for two machines, exact where F's
    follow each other on one and B's on the other: first those whose F's are shorter than their
    B's, by their F's, then the others by their B's, the longest first.
    """
    sums = Costs.of(problem).durations[:3].sum(axis=1).reshape(3, -1)  # one where all are alike
    f, b, w = np.broadcast_to(sums, (3, problem.microbatches))
    given = np.arange(problem.microbatches)
    ascending = np.argsort(f + b + w, kind="stable")
    middle = np.concatenate([ascending[::2], ascending[1::2][::-1]])
    turns = np.empty_like(ascending)
    turns[::2], turns[1::2] = ascending[: (len(given) + 1) // 2], ascending[::-1][: len(given) // 2]
    early = f < b
    sooner = given[early][np.argsort(f[early], kind="stable")]
    later = given[~early][np.argsort(-b[~early], kind="stable")]
    yield from (given, ascending, ascending[::-1], middle, np.roll(middle, len(middle) // 2))
    yield from (turns, turns[::-1], np.concatenate([sooner, later]))
