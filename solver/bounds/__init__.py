"""Lower bounds on the cost of every schedule of a problem, each with its proof.

The proofs hold for all start times that keep the contract's rules, not only for schedules in which
each op starts as soon as possible. They treat B and W as separate ops: a BW is a B followed at once
by its W, with the gradient sent only at the end, so splitting it gives a valid schedule with the
same times. No proof assumes that microbatches keep their order from stage to stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem

from ..core.bound import Bound
from ..core.linear_instance import LinearInstance
from ..core.overlap_relaxation import least_times, overlap_work
from ..core.relaxations import has_remat, plain, relaxed, relaxed_at_backwards, unfused
from ..core.unlike import check_unpaired, least
from .feasibility import check_feasible
from .general import critical_path, work
from .low_memory.activation_slots import slot_spans, slots
from .low_memory.crossings import crossings
from .moments import moments
from .remat import recomputed_or_idle
from .unlike import unlike_bounds
from .weight_arrival import weight_arrivals

GENERAL: tuple[Callable[[Problem], Bound], ...] = (work, critical_path, weight_arrivals)
"""The bounds that hold for every placement."""


def lower_bound(problem: Problem) -> Bound:
    """The highest of all bounds that apply.

    Raises InfeasibleError and InputError as :func:`lower_bounds` does.
    """
    return max(lower_bounds(problem), key=lambda bound: bound.value)


def lower_bounds(problem: Problem) -> Iterator[Bound]:
    """Yield all bounds that apply to the problem, roughly from the fastest to the slowest.

    The first one, the work bound, takes almost no time. If activations can be recomputed or
    offloaded, the bounds are those of the problem's relaxations (:mod:`..core.relaxations`) and
    :func:`.remat.recomputed_or_idle`. If pairs (an F and a BW at the same time) save time, the
    bounds are those of the relaxation :func:`..core.overlap_relaxation.least_times`. Raises
    InfeasibleError if no schedule fits in memory, and InputError if microbatches differ and the
    profile allows pairs.
    """
    check_feasible(problem)
    if problem.profile.unlike:
        yield from _unlike(problem)
        return
    if overlap_saves(problem):
        words = "the busiest rank runs one op or pair at a time"
        yield Bound(overlap_work(unfused(problem)), "work", words)
    yield from plain_bounds(least_times(relaxed(problem)))
    if has_remat(problem):
        yield from plain_bounds(least_times(relaxed_at_backwards(problem)))
        yield recomputed_or_idle(least_times(unfused(problem)))


def _unlike(problem: Problem) -> Iterator[Bound]:
    """Yield the bounds of a problem in which the times or sizes of microbatches differ.

    They include all bounds of the relaxation :func:`..core.unlike.least`, in which microbatches are
    equal. Raises InputError if the profile allows pairs, for which these bounds do not hold.
    """
    check_unpaired(problem)
    bare = plain(unfused(problem))
    yield work(bare)
    yield critical_path(bare)
    if problem.placement.passing is Passing.ACTIVATIONS and not has_remat(problem):
        yield from unlike_bounds(bare)
    yield from lower_bounds(least(problem))


def work_bound(problem: Problem) -> Bound:
    """The work of the busiest rank, a lower bound on both the objective and the steady step.

    It takes almost no time. The steady step is the time of an iteration when iterations follow each
    other; the work is a bound on it because a rank runs all ops of an iteration, one at a time,
    before it begins the next iteration (:mod:`pipeloom.ir.cost.steady_state`). All other bounds are
    about the makespan or the longest span of a rank, and need not hold for the steady step. Raises
    InfeasibleError and InputError as :func:`lower_bounds` does.
    """
    return next(lower_bounds(problem))


def plain_bounds(problem: Problem) -> Iterator[Bound]:
    """Yield all bounds that apply to ``problem``, which has no recomputation, offload or pairs."""
    for general in GENERAL:
        yield general(problem)
    if problem.placement.passing is Passing.ACTIVATIONS:
        linear = LinearInstance.of(problem)
        if linear is None:
            yield moments(problem)
            return
        lags, spans = linear.lags(problem.objective), slot_spans(linear)
        yield slots(linear, lags, spans)
        yield moments(problem, spans)
        yield crossings(linear, lags)
    elif problem.placement.kind is PlacementKind.BIDIRECTIONAL:
        yield moments(problem)
