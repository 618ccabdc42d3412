"""The kinds of problems: each is one of ``weights``, ``unlike``, ``remat`` and ``plain``."""

from __future__ import annotations

from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem

from .linear_instance import each_alone
from .relaxations import has_remat
from .streams import as_many_each_way


def weights(problem: Problem) -> bool:
    """Whether weights are passed."""
    return problem.placement.passing is Passing.WEIGHTS


def unlike(problem: Problem) -> bool:
    """Whether microbatches differ in times or sizes."""
    return problem.profile.unlike and not weights(problem)


def remat(problem: Problem) -> bool:
    """Whether activations may be recomputed or offloaded, or a BW is faster than B and W."""
    return has_remat(problem) and not unlike(problem)


def linear(problem: Problem) -> bool:
    """Whether microbatches are alike, nothing is recomputed, and each stage has its own rank."""
    return plain(problem) and each_alone(problem)


def plain(problem: Problem) -> bool:
    return not (weights(problem) or unlike(problem) or remat(problem))


def even(problem: Problem) -> bool:
    """Whether some rank has several stages, and each direction as many microbatches."""
    return plain(problem) and not each_alone(problem) and as_many_each_way(problem)


def two_copies(problem: Problem) -> bool:
    return problem.placement.kind is PlacementKind.BIDIRECTIONAL


def paired(problem: Problem) -> bool:
    """Whether an F and a BW may run at once and save time."""
    return plain(problem) and overlap_saves(problem)
