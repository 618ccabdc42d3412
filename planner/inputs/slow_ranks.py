"""``--slow``: planning for ranks that take longer than the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem
from pipeloom.solver.core.relaxations import with_stages

Slow: TypeAlias = Mapping[int, float] | None
"""By rank, how many times as long it takes as its profile says."""
_TIMES = ("t_f", "t_b", "t_w", "t_bw", "t_fb", "t_r")


def slowed(problem: Problem, slow: Slow) -> Problem:
    """The problem with the times of slow ranks in its profile.

    Raises InputError for a time that is none, for a rank that does not exist, and where a stage
    runs on several ranks.
    """
    if not slow:
        return problem
    _check(slow, problem.ranks)
    if problem.placement.passing is not Passing.ACTIVATIONS:
        two = problem.placement.kind is PlacementKind.BIDIRECTIONAL
        got = "--placement bidirectional" if two else "--passing weights"
        raise InputError(f"slow: expected each stage on one rank, got {got}")
    times = [slow.get(rank, 1.0) for rank in problem.owner[:, 0].tolist()]
    return with_stages(problem, lambda stage, own: stage.scaled(own, _TIMES), times)


def _check(slow: Mapping[int, float], ranks: int) -> None:
    for rank, times in slow.items():
        if isinstance(times, bool) or not (isinstance(times, int | float) and 0 < times < math.inf):
            raise InputError(f"slow: expected a number > 0 of rank {rank}, got {times!r}")
        if not 0 <= rank < ranks:
            raise InputError(f"slow: expected ranks 0..{ranks - 1}, got {rank}")
