"""Lower bounds on the cost of every schedule of a problem, each with its proof.

The proofs hold for any times that keep the contract's rules, not only for as-soon-as-possible
ones. They speak of B and W apart: a fused BW is a B with its W right behind it that gives nothing
away earlier, so splitting it keeps a valid schedule with the same times. None assumes that
microbatches keep their order from stage to stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeloom.ir.cost.overlap import pairs_save
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem

from ..core.bound import Bound
from ..core.decomposition import different_parts
from ..core.linear_instance import Chain
from ..core.overlap_relaxation import least_times, paired_work
from ..core.relaxations import apart, has_levers, relaxed, relaxed_at_backwards
from .bidirectional import first_and_last, memory_time_both_ways
from .feasibility import check_feasible
from .general import critical_path, work
from .general_placement import (
    Placed,
    last_forward,
    placed_head_tail,
    placed_through,
    placed_throughput,
    turnover,
)
from .linear import head_tail, through, throughput
from .low_memory.activation_slots import slots
from .low_memory.crossings import crossings
from .remat import recomputed_or_held, recomputed_or_idle
from .weight_arrival import arrivals


def lower_bound(problem: Problem) -> Bound:
    """The best of all bounds that apply. Raises InfeasibleError where no schedule is valid."""
    return max(lower_bounds(problem), key=lambda bound: bound.value)


def lower_bounds(problem: Problem) -> Iterator[Bound]:
    """All bounds that apply, one by one, as the tables list them: those that take longest last.

    The first is there at once. Raises InfeasibleError where no schedule is valid. Where activations
    may be recomputed or offloaded, they are those of the problems that
    :func:`..core.relaxations.relaxed` and
    :func:`..core.relaxations.relaxed_at_backwards` give, and :data:`LEVERS`; where pairs save time,
    with the times that
    :func:`..core.overlap_relaxation.least_times` gives.
    """
    check_feasible(problem)
    if pairs_save(problem):
        yield Bound(
            paired_work(apart(problem)), "work", "the busiest rank runs one op or pair at a time"
        )
    yield from plain_bounds(least_times(relaxed(problem)))
    if has_levers(problem):
        yield from plain_bounds(least_times(relaxed_at_backwards(problem)))
        for name, pulled, words in LEVERS:
            yield Bound(pulled(least_times(apart(problem))), name, words)


def work_bound(problem: Problem) -> Bound:
    """The busiest rank's work, which is there at once; a bound on the steady step as well as on the
    objective.

    Of the others those are none on a step that are about a makespan, or about the longest of all
    ranks' spans, which need not be one rank's in all iterations. A rank runs one op at a time,
    though, and all those of an iteration before it begins the next one (:mod:`...ir.replay`).
    Raises InfeasibleError as :func:`lower_bounds` does.
    """
    return next(lower_bounds(problem))


def plain_bounds(problem: Problem) -> Iterator[Bound]:
    """Those of a problem without levers or pairs."""
    for name, general, words in GENERAL:
        yield Bound(general(problem), name, words)
    if problem.placement.passing is not Passing.ACTIVATIONS:
        for part in different_parts(problem):
            yield from lower_bounds(part)  # see parts
        if problem.placement.kind is PlacementKind.BIDIRECTIONAL:
            for name, both_ways, words in BOTH_WAYS:
                yield Bound(both_ways(problem), name, words)
        return
    chain = Chain.of(problem)
    if chain is not None:
        lags = chain.lags(problem.objective)
        for name, linear, words in LINEAR:
            yield Bound(linear(chain, lags), name, words)
    placed = Placed.of(problem)
    for name, anywhere, words in PLACED if chain is None else PLACED[:1]:
        yield Bound(anywhere(placed), name, words)


_General = tuple[str, Callable[[Problem], float], str]
_Placed = tuple[str, Callable[[Placed], float], str]
_Linear = tuple[str, Callable[[Chain, FloatArray], float], str]

GENERAL: tuple[_General, ...] = (
    ("work", work, "the busiest rank runs one op at a time"),
    ("critical-path", critical_path, "one microbatch passes all stages and comes back"),
    ("arrivals", arrivals, "no rank begins before the weights of others have come to it"),
)
LEVERS: tuple[_General, ...] = (
    (
        "levers-head",
        recomputed_or_idle,
        "before its first B a rank idles, or makes room for F's by recomputing later or by copies, "
        "which take their time",
    ),
    (
        "levers-throughput",
        recomputed_or_held,
        "what microbatches hold, for as long as they hold it, fits in memory times span, or is "
        "recomputed or copied",
    ),
)
"""Where activations may be recomputed or offloaded."""
PLACED: tuple[_Placed, ...] = (
    (
        "last-forward",
        last_forward,
        "memory holds few microbatches, so that a rank's last F is late, and its microbatch has to "
        "come back",
    ),
    (
        "head-tail",
        placed_head_tail,
        "few F's fit in memory before the first B comes back, few B's and W's are left after the "
        "last F",
    ),
    (
        "through",
        placed_through,
        "every microbatch passes each rank one after the other and comes back",
    ),
    (
        "throughput",
        placed_throughput,
        "what microbatches hold, for as long as they hold it, fits in memory times span",
    ),
    (
        "turnover",
        turnover,
        "memory holds few microbatches until each comes back, and the last one has to come all the "
        "way",
    ),
)
"""Of any map of stages to ranks; where each stage has a rank of its own, :data:`LINEAR` knows
better than all but the first."""
BOTH_WAYS: tuple[_General, ...] = (
    (
        "head-tail",
        first_and_last,
        "few F's fit in memory before the first B comes back, few B's and W's are left after the "
        "last F",
    ),
    (
        "throughput",
        memory_time_both_ways,
        "what microbatches hold, for as long as they hold it, fits in memory times span",
    ),
)
"""Where microbatches go both ways."""
LINEAR: tuple[_Linear, ...] = (
    (
        "head-tail",
        head_tail,
        "few F's fit in memory before the first B comes back, few B's and W's are left after the "
        "last F",
    ),
    (
        "through",
        through,
        "every microbatch passes the later stages one after the other and comes back",
    ),
    (
        "throughput",
        throughput,
        "what microbatches hold, for as long as they hold it, fits in memory times span",
    ),
    (
        "slots",
        slots,
        "memory holds few microbatches, and each waits for an earlier one to come back",
    ),
    (
        "crossings",
        crossings,
        "memory holds few microbatches, and those on their way down wait for those on their way up",
    ),
)
