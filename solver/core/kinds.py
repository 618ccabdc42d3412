"""Predicates on problems: each problem is one of ``weights``, ``unlike``, ``remat``, ``plain``.

The other predicates distinguish kinds of ``plain`` problems.
"""

from __future__ import annotations

from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem

from .linear_instance import each_alone
from .relaxations import has_remat
from .streams import as_many_each_way


def weights(problem: Problem) -> bool:
    """Whether weights are passed from rank to rank instead of activations."""
    return problem.placement.passing is Passing.WEIGHTS


def unlike(problem: Problem) -> bool:
    """Whether microbatches differ in times or sizes; always False if weights are passed."""
    return problem.profile.unlike and not weights(problem)


def remat(problem: Problem) -> bool:
    """Whether something may be recomputed or offloaded, or some BW is faster than its B and W.

    Always False if microbatches are unlike.
    """
    return has_remat(problem) and not unlike(problem)


def linear(problem: Problem) -> bool:
    """Whether the problem is plain, and each stage has a rank of its own."""
    return plain(problem) and each_alone(problem)


def plain(problem: Problem) -> bool:
    """Whether a problem is neither ``weights`` nor ``unlike`` nor ``remat``.

    Then weights are not passed, microbatches are equal, nothing can be recomputed or offloaded, and
    no BW is faster than its B and W.
    """
    return not (weights(problem) or unlike(problem) or remat(problem))


def even(problem: Problem) -> bool:
    """Whether the problem is plain, some rank has several stages, and directions are balanced.

    Directions are balanced if microbatches go in one direction only, or equally many in each of
    two.
    """
    return plain(problem) and not each_alone(problem) and as_many_each_way(problem)


def two_copies(problem: Problem) -> bool:
    """Whether microbatches go in two directions, so that each stage has two copies."""
    return problem.placement.kind is PlacementKind.BIDIRECTIONAL


def paired(problem: Problem) -> bool:
    """Whether the problem is plain, and time is saved if an F and a BW run at the same time."""
    return plain(problem) and overlap_saves(problem)
