"""The gain of more memory, faster links, balance or more microbatches: by the lower bound, and by a
short run of the optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Link, Links, Profile
from pipeloom.ir.model.schedule import Schedule, TransferKind
from pipeloom.ir.model.transfers import delay_matrix
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.bounds.general import busy
from pipeloom.solver.core.options import Memory, SolveOptions
from pipeloom.solver.core.stopping import NEVER, StoppingCriterion
from pipeloom.solver.optimize import optimize

from ..inputs.problem_setup import slowed

MOST_OPS = 200_000
"""Number of ops above which computing the bounds some twenty times takes too long."""
MOST_TRIED = 50_000
"""Number of ops above which a short run of the optimizer finds nothing, so that only bounds are
computed."""
SAME = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of the change ``what``: a lower bound on the cost, and the cost of a schedule
    found."""

    what: str
    bound: float
    bound_bubble: float
    cost: float | None = None
    bubble: float | None = None

    @classmethod
    def of(cls, what: str, problem: Problem, bound: float, cost: float | None) -> Change:
        rate = None if cost is None else bubble(problem, cost)
        return cls(what, bound, bubble(problem, bound), cost, rate)

    def gains(self, now: Change) -> bool:
        """Whether the bubble rate of the bound or of the schedule found is lower than ``now``'s."""
        found = self.bubble is not None and _less(self.bubble, now.bubble or 0.0)
        return found or _less(self.bound_bubble, now.bound_bubble)


def changes(
    schedule: Schedule,
    seconds: float = 2.0,
    should_stop: StoppingCriterion = NEVER,
    memory: Memory | None = None,
) -> list[Change]:
    """Changes of the problem with their gains: room for one more M_B on every rank; faster links;
    the same work on every rank; twice the microbatches.

    The optimizer gets ``seconds`` for each; it is not run if that is 0 or ``should_stop`` returns
    true. The cost found is at most that of ``schedule``, or of the schedule for a smaller change,
    under the change. Nothing is tried with more than ``MOST_OPS`` ops. ``memory`` is passed to the
    optimizer.
    """
    found: list[Change] = []
    if schedule.num_ops > MOST_OPS:
        return found
    known, profile, report = schedule, schedule.problem.profile, schedule.report
    seed = (report and report.seed) or 0
    options = SolveOptions(time_limit=seconds, seed=seed, should_stop=should_stop, memory=memory)
    if schedule.problem.placement.passing is Passing.MIXED:
        seconds = 0.0  # bounds only
    for what, problem, more in _variants(schedule.problem):
        bound = lower_bound(problem).value
        known, cost = known if more else schedule, None
        if seconds > 0 and schedule.num_ops <= MOST_TRIED and not should_stop():
            room = schedule.problem.memory_limit if problem.profile is profile else None
            if problem.microbatches != schedule.problem.microbatches:
                cost = _cost(problem, options)
            else:
                known = _found(known, problem, options, room)
                cost = known.known_timing.cost(problem.objective)
        found.append(Change.of(what, problem, bound, cost))
    return found


def bubble(problem: Problem, cost: float) -> float:
    """The bubble rate of a schedule of ``cost``; 0 if the cost is 0."""
    work = float(busy(problem).sum())
    return 1.0 - work / (problem.ranks * cost) if cost > 0 else 0.0


def more_memory(problem: Problem) -> Problem:
    """The problem with room for one more of the rank's largest M_B on every rank."""
    pairs = zip(problem.memory_limit, _largest(problem), strict=True)
    return replace(problem, memory_limit=tuple(limit + size for limit, size in pairs))


def faster_links(problem: Problem, share: float) -> Problem:
    """The problem with every delay between ranks multiplied by ``share``."""
    return replace(problem, profile=_scaled(problem.profile, share))


def _variants(problem: Problem) -> Iterator[tuple[str, Problem, bool]]:
    """Each change's description, its problem, and whether it extends the change before it."""
    if problem.limited:
        yield "room for one more microbatch on every rank", more_memory(problem), False
    if _delayed(problem):
        yield "links twice as fast", faster_links(problem, 0.5), False
        yield "links without delay", faster_links(problem, 0.0), True
    if problem.placement.passing is Passing.ACTIVATIONS:
        work = busy(problem)
        if 0 < work.min() < work.max() / SAME:
            even = dict(enumerate((work.mean() / work).tolist()))
            yield "the same work on every rank", slowed(problem, even), False
    if not problem.profile.unlike:
        more = replace(problem, microbatches=2 * problem.microbatches)
        yield "twice the microbatches", more, False


def _delayed(problem: Problem) -> bool:
    """Whether any message takes time."""
    if problem.placement.passing is Passing.WEIGHTS:
        stages = range(problem.stages)
        return any(
            delay_matrix(problem.profile, kind, s).any() for kind in TransferKind for s in stages
        )
    costs = Costs.of(problem)
    return bool(costs.into_f.any() or costs.into_b.any())


def _found(
    schedule: Schedule, problem: Problem, options: SolveOptions, room: Sequence[float] | None
) -> Schedule:
    """The best schedule known for ``problem``: a new one, or ``schedule``'s order.

    A new one that also fits in the smaller limits ``room`` does not need the change, and is
    ignored.
    """
    kept = timed(replace(schedule, problem=problem, timing=None))
    with suppress(InfeasibleError):  # too little time to fit device memory
        new = optimize(problem, options)
        cost, old = (each.known_timing.cost(problem.objective) for each in (new, kept))
        peaks = new.known_timing.peak_memory
        vain = room is not None and all(p <= r * SAME for p, r in zip(peaks, room, strict=True))
        return new if cost < old and not vain else kept
    return kept


def _cost(problem: Problem, options: SolveOptions) -> float | None:
    """The cost of the optimizer's schedule; None if it finds none."""
    with suppress(InfeasibleError):
        return optimize(problem, options).known_timing.cost(problem.objective)
    return None


def _less(bubble: float, other: float) -> bool:
    """Whether ``bubble`` is less than ``other`` by more than rounding."""
    return (1 - other) * SAME < 1 - bubble


def _largest(problem: Problem) -> list[float]:
    """The largest M_B of each rank's stages; if ranks run all stages, the sum over stages."""
    columns = range(problem.microbatches if problem.profile.unlike else 1)
    most = [max(stage.at(j).m_b for j in columns) for stage in problem.profile.stages]
    if problem.placement.passing is Passing.WEIGHTS:
        return [sum(most)] * problem.ranks
    return [max((most[s] for s in here), default=0.0) for here in _stages_run(problem)]


def _stages_run(problem: Problem) -> list[list[int]]:
    """The stages that each rank runs, for any microbatch."""
    owner = problem.owner
    return [np.flatnonzero((owner == rank).any(axis=1)).tolist() for rank in range(problem.ranks)]


def _scaled(profile: Profile, share: float) -> Profile:
    links = _quicker(profile.links, share) if profile.links is not None and share > 0 else None
    if profile.t_comm is None and links is not None:
        return replace(profile, links=links)
    if isinstance(profile.t_comm, tuple):
        t_comm = tuple(tuple(x * share for x in r) for r in profile.t_comm)
        return replace(profile, t_comm=t_comm, links=links)
    return replace(profile, t_comm=(profile.t_comm or 0.0) * share, links=links)


def _quicker(links: Links, share: float) -> Links:
    def quicker(link: Link) -> Link:
        return Link(link.latency * share, link.gigabytes_per_second / share)

    pairs = tuple((a, b, quicker(link)) for a, b, link in links.pairs)
    return replace(links, default=quicker(links.default), pairs=pairs)
