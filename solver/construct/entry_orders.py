"""Orders in which unlike microbatches may enter the pipeline."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import IntArray
from pipeloom.ir.model.problem import Problem


def entry_orders(problem: Problem) -> Iterator[IntArray]:
    """Yield orders of entry, (M,) each: the microbatch that enters first, second, and so on.

    They are: as numbered; shortest first; longest first; longest in the middle; longest at both
    ends; long and short ones alternately, beginning with a short or with a long one; and by
    Johnson's rule (1954). Johnson's rule is optimal for two machines, if F's run on one and B's on
    the other: first the microbatches whose F's are shorter than their B's, by ascending F time,
    then the others by descending B time.
    """
    # one column if all microbatches are equal
    times = Costs.of(problem).durations[:3].sum(axis=1).reshape(3, -1)
    f, b, w = np.broadcast_to(times, (3, problem.microbatches))
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
