"""Lower bounds on the cost of every schedule of a problem, each with its proof.

The proofs hold for any times that keep the contract's rules, not only for as-soon-as-possible
ones. They speak of B and W apart: a fused BW is a B with its W right behind it that gives nothing
away earlier, so splitting it keeps a valid schedule with the same times. None assumes that
microbatches keep their order from stage to stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem

from ..core.bound import Bound
from ..core.linear_instance import LinearInstance
from ..core.overlap_relaxation import least_times, overlap_work
from ..core.relaxations import has_remat, plain, relaxed, relaxed_at_backwards, unfused
from ..core.unlike import check_unpaired, least
from .feasibility import check_feasible
from .general import critical_path, work
from .linear import head_tail
from .low_memory.activation_slots import slots
from .low_memory.crossings import crossings
from .remat import recomputed_or_held, recomputed_or_idle
from .several_stages import general_placement
from .several_stages.general_placement import GeneralPlacement
from .unlike import unlike_bounds
from .weight_arrival import weight_arrivals


def _linear(
    bound: Callable[[LinearInstance, FloatArray], Bound],
) -> Callable[[GeneralPlacement], Bound]:
    """A bound of the linear instance of a placement that has one."""

    def of(placed: GeneralPlacement) -> Bound:
        assert placed.linear is not None
        return bound(placed.linear, placed.linear.lags(placed.objective))

    return of


GENERAL: tuple[Callable[[Problem], Bound], ...] = (work, critical_path, weight_arrivals)
"""The bounds of any problem."""
LINEAR: tuple[Callable[[GeneralPlacement], Bound], ...] = (
    _linear(head_tail),
    general_placement.through,
    general_placement.throughput,
    _linear(slots),
    _linear(crossings),
    general_placement.last_forward,
)
"""The bounds of a placement of each stage on a rank of its own."""
PLACED: tuple[Callable[[GeneralPlacement], Bound], ...] = (
    general_placement.last_forward,
    general_placement.placed_head_tail,
    general_placement.through,
    general_placement.throughput,
    general_placement.turnover,
)
"""The bounds of any other map of stages to ranks."""
BIDIRECTIONAL: tuple[Callable[[Problem], Bound], ...] = (
    general_placement.visits_head_tail,
    general_placement.visits_throughput,
)
"""The bounds where microbatches go both ways."""
REMAT: tuple[Callable[[Problem], Bound], ...] = (recomputed_or_idle, recomputed_or_held)
"""The bounds where activations may be recomputed or offloaded."""


def lower_bound(problem: Problem) -> Bound:
    """The best of all bounds that apply. Raises InfeasibleError where no schedule is valid."""
    return max(lower_bounds(problem), key=lambda bound: bound.value)


def lower_bounds(problem: Problem) -> Iterator[Bound]:
    """All bounds that apply, one by one in the order of the tables, the slow ones last.

    The first takes no time. Raises InfeasibleError where no schedule is valid. A problem with
    recomputation or offload is bounded by its relaxations (:mod:`..core.relaxations`) and by
    :data:`REMAT`, one in which pairs save time by :func:`..core.overlap_relaxation.least_times`.
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
        for bound in REMAT:
            yield bound(least_times(unfused(problem)))


def _unlike(problem: Problem) -> Iterator[Bound]:
    """The bounds where microbatches are unlike, and those of the least of them.

    Raises InputError for pairs, about which they say nothing.
    """
    check_unpaired(problem)
    bare = plain(unfused(problem))
    yield work(bare)
    yield critical_path(bare)
    if problem.placement.passing is Passing.ACTIVATIONS and not has_remat(problem):
        yield from unlike_bounds(bare)
    yield from lower_bounds(least(problem))


def work_bound(problem: Problem) -> Bound:
    """The busiest rank's work: a bound on the objective and on the steady step, found at once.

    A rank runs all ops of an iteration, one at a time, before it begins the next
    (:mod:`pipeloom.ir.cost.steady_state`). The other bounds are about the makespan, or about the
    longest span of all ranks, and need not hold for the step. Raises InfeasibleError as
    :func:`lower_bounds` does.
    """
    return next(lower_bounds(problem))


def plain_bounds(problem: Problem) -> Iterator[Bound]:
    """All bounds of a problem without recomputation, offload or pairs."""
    for general in GENERAL:
        yield general(problem)
    if problem.placement.passing is not Passing.ACTIVATIONS:
        if problem.placement.kind is PlacementKind.BIDIRECTIONAL:
            yield from (visits(problem) for visits in BIDIRECTIONAL)
        return
    placed = GeneralPlacement.of(problem)
    for bound in PLACED if placed.linear is None else LINEAR:
        yield bound(placed)
