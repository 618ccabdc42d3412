"""Improves the lower bound of an incumbent: closed forms, relaxations, exact search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem

from .bounds import lower_bounds
from .bounds.low_memory.activation_slots import slots_limit_rate
from .bounds.low_memory.crossings_search import NEARLY, crossings_bound
from .bounds.milp_relaxation import SECONDS
from .bounds.moments import branched_moments
from .core.bound import Bound
from .core.incumbent import Incumbent
from .core.linear_instance import LinearInstance, each_alone
from .core.options import SolveOptions
from .core.overlap_relaxation import least_times, without_overlap
from .core.relaxations import has_remat
from .core.tolerances import ROUNDING
from .core.worker_threads import Pieces
from .exact import BACKENDS

if TYPE_CHECKING:
    from .exact.instance import Learned

CROSSINGS_SECONDS = 10.0  # time limit of the crossings search


def closed_form_bounds(best: Incumbent) -> None:
    """Raise the bound by each closed-form bound in turn, until bound and cost are equal."""
    for found in lower_bounds(best.problem):
        best.work.spend(best.problem.stages**2 * best.problem.microbatches)
        best.raise_bound(found)
        if best.over():
            return


def tighten(best: Incumbent) -> Pieces:
    """Raise the bound by a bound that takes long to compute; do nothing if the solve is over.

    If each stage has a rank of its own, this is the crossings search; it is skipped if memory does
    not limit the rate of microbatches. For other placements, it is the moments bound with a search
    tree.
    """
    if best.over():
        return
    linear = LinearInstance.of(least_times(best.problem))
    if linear is None:
        branch(best)
        yield
        return
    if not slots_limit_rate(linear, NEARLY):
        return
    lags = linear.lags(best.problem.objective)
    budget = best.budget(1 / 3, CROSSINGS_SECONDS)
    value = crossings_bound(linear, lags, best.cost, budget, best.bound.value)
    best.work.spend(budget.work.used)
    words = "memory holds few microbatches, and each on its way up meets all others"
    best.raise_bound(Bound(value * (1 - ROUNDING), "crossings-search", words))
    yield


def branch(best: Incumbent) -> None:
    """Raise the bound by the moments bound, with a search tree over the graph's open choices."""
    budget = best.budget(1 / 4, SECONDS)
    found = branched_moments(best.problem, best.bound.value, best.cost, budget)
    best.work.spend(budget.work.used)
    best.raise_bound(found)


def interleave(best: Incumbent, seed: int) -> Pieces:
    """Raise the bound by refuting target costs with CP-SAT, which may also find schedules.

    To refute a cost is to prove that no schedule costs at most that. Refutations succeed if memory
    holds few microbatches, or if microbatches are unlike and there are few of them. Does nothing if
    pairs save time.
    """
    from .exact.bisection import bisect, climb
    from .exact.rank_windows import bound_by_windows

    if best.problem.profile.unlike:
        yield from climb(best, seed)
    elif not overlap_saves(best.problem):
        learned: Sequence[Learned] = ()
        if several_stages(best.problem):
            learned = yield from bound_by_windows(best)
        yield from bisect(best, seed, learned)


def several_stages(problem: Problem) -> bool:
    """Whether some rank has several stages, only activations are passed, and there is no remat.

    No remat means that nothing can be recomputed or offloaded, and that no BW is faster than its B
    and W.
    """
    passing = problem.placement.passing is Passing.ACTIVATIONS
    return passing and not has_remat(problem) and not each_alone(problem)


def solve_exactly(best: Incumbent, solver: str, seed: int) -> bool:
    """Run an exact solver from the best schedule; return whether the solver has finished.

    The schedules and bounds that the solver finds are stored in ``best``. The solver makes no pairs
    (an F and a BW at the same time). If pairs save time, the solver's bounds do not hold for the
    problem and are ignored. If the result is False, a further call may achieve more: when more time
    is given or, with a work limit, when this worker runs next.
    """
    if best.over():
        return False
    budget, bounds_all = best.budget(), not overlap_saves(best.problem)
    incumbent = best.schedule(solver, seed)
    if not bounds_all:
        problem = without_overlap(best.problem)
        incumbent = timed(replace(incumbent, problem=problem, pairs=()))

    def raise_to(bound: float) -> None:
        if bounds_all:
            known = min(bound, best.cost)
            best.raise_bound(Bound(known, solver, f"{solver} searched all orders"))

    complete = BACKENDS[solver](
        incumbent,
        best.bound.value,
        SolveOptions(seed=seed).part(budget, best.interrupted),
        lambda found: best.offer(found.order, solver),
        raise_to,
    )
    if not complete:
        best.work.spend(budget.work.ops)
    return complete
