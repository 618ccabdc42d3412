"""The best placement: bounds all placements that fit, and searches those that may win.

Successive halving: each placement has one solve that can be paused. The solves share the time as
long as their placements may win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.placement import Placement, PlacementKind
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import sufficient_size

from ..bounds import lower_bound
from ..core.schedule_cost import cost_and_memory, iteration_time
from ..core.stopping import NEVER, StoppingCriterion, TimeLimit, clock
from ..core.tolerances import CLOSED, ROUNDING
from .balanced import balanced
from .replication import BIDIRECTIONAL, KEPT, assumed, why_one_way, why_unchecked

if TYPE_CHECKING:
    from ..optimize import Solving


StartSolve: TypeAlias = "Callable[[Problem, str], Solving]"
"""A function that creates the solve of a problem; its arguments are the problem and the name of its
placement."""

HOPE = 1 / 3  # share of the gap between cost and bound that further search is assumed to close
LEAST_SECONDS = 0.5
QUICK = 0.15  # seconds of search that suffice to compare placements
EXPLORING = 0.5  # share of the time for finding out which placement gets the rest
AFTER_STOP = 1.0  # seconds after a stop in which placements still get their first schedules


@dataclass(slots=True, eq=False)
class TriedPlacement:
    """A placement with the lower bound on all its schedules, and the best schedule found.

    ``bound``: the lower bound; None if no schedule fits in memory, and then ``why_not`` is the
    reason. ``schedule``: the best schedule; None if the placement was not searched, because its
    bound is no better than a known cost or for lack of time. ``lacks``: the error with the memory
    limit that the placement needs, if only the given limit is too small; else None. ``note``: what
    is assumed about the placement. ``seconds``: how long it was searched; None without a time
    limit. ``problem``: the problem with this placement; None if nothing fits, or if the placement
    is searched elsewhere. ``search``: its solve; None until it has begun.
    """

    name: str
    bound: float | None
    schedule: Schedule | None = None
    why_not: str | None = None
    note: str = ""
    lacks: InfeasibleError | None = None
    problem: Problem | None = None
    seconds: float | None = None
    search: Solving | None = None

    @property
    def done(self) -> bool:
        """Whether the search has nothing left to do."""
        return self.search is not None and self.search.done

    @property
    def cost(self) -> float:
        return inf if self.schedule is None else iteration_time(self.schedule)

    @property
    def promise(self) -> float:
        """A guess of the attainable cost: the cost after a third of the gap is closed.

        The gap is that between the cost and the bound. The result is infinite if no schedule is
        known.
        """
        if self.schedule is None:
            return inf
        return self.cost - HOPE * (self.cost - (self.bound or 0.0))

    def go(self, search: Callable[[float], Schedule], seconds: float) -> None:
        began = clock()
        self.schedule = search(seconds)
        self.bound = max(self.bound or 0.0, self.schedule.known_report.lower_bound or 0.0)
        self.seconds = (self.seconds or 0.0) + clock() - began


class SuccessiveHalving:
    """A search by successive halving: placements share the time, ever fewer of them.

    Only placements that may still become the best are searched. ``tried``: all placements.
    ``contenders``: the ones that can be searched, because they have a ``problem``.
    """

    def __init__(self, tried: Sequence[TriedPlacement], should_stop: StoppingCriterion) -> None:
        self._tried, self._should_stop, self._time = tried, should_stop, TimeLimit()
        self.contenders = [each for each in tried if each.problem]

    @property
    def best(self) -> Schedule | None:
        """The cheapest schedule, on ties the one that needs the least memory.

        None if there is no schedule.
        """
        found = [each.schedule for each in self.contenders if each.schedule is not None]
        return min(found, key=cost_and_memory, default=None)

    @property
    def cost(self) -> float:
        return min((contender.cost for contender in self.contenders), default=inf)

    @property
    def bound(self) -> float | None:
        """A lower bound on the cost of all schedules with any of the placements.

        None if nothing fits in memory.
        """
        bounds = [each.bound for each in self._tried if each.bound is not None]
        return min(bounds, default=None)

    @property
    def tried(self) -> list[TriedPlacement]:
        """All placements: the best one, then the others by ascending cost, then bound."""
        best = self.best
        return sorted(
            self._tried, key=lambda one: (one.schedule is not best, one.cost, one.bound or inf)
        )

    def run(self, start: StartSolve, seconds: float) -> None:
        """Search for ``seconds`` in total; if that is infinite, run each search to its own end.

        Only placements that may still become the best are searched. ``start``: creates the solve of
        a placement.
        """
        self._time = TimeLimit(seconds)
        self._begin(start)
        if seconds < inf:
            self._explore(EXPLORING * self._time.left)
        while (going_on := self._going_on()) and not self._over:
            self._advance(going_on[0], max(self._time.left / 3, LEAST_SECONDS))
        for each in self.contenders if seconds == inf else ():
            each.seconds = None

    def _explore(self, seconds: float) -> None:
        """Search all contenders for equal times, then the more promising half of them, and so on.

        ``seconds``: the time for all these searches together.
        """
        exploring = self._going_on()
        rounds = math.ceil(math.log2(max(1, len(exploring))))
        rounds = min(rounds, max(1, int(seconds / (QUICK * max(1, len(exploring))))))
        for _ in range(rounds):
            for contender in exploring:
                self._advance(contender, seconds / rounds / len(exploring))
            still = [contender for contender in self._going_on() if contender in exploring]
            exploring = still[: (len(exploring) + 1) // 2]

    @property
    def _over(self) -> bool:
        return self.cost < inf and (self._should_stop() or self._time())

    def _begin(self, start: StartSolve) -> None:
        """Build the first schedule of each placement that may still become the best.

        After a stop this goes on for up to :data:`AFTER_STOP` seconds, because the only schedule so
        far might cost many times as much as that of the next placement.
        """
        left: TimeLimit | None = None
        for contender in sorted(self.contenders, key=lambda each: each.bound or 0.0):
            if self.cost < inf and self._should_stop():
                left = left or TimeLimit(AFTER_STOP)
            if self.cost < inf and (self._time() or (left is not None and left())):
                return
            if self._may_win(contender) and contender.problem is not None:
                contender.search = start(contender.problem, contender.name)
                contender.go(contender.search.begin, self._time.left)

    def _advance(self, contender: TriedPlacement, seconds: float) -> None:
        if contender.search is not None and self._may_win(contender) and not self._over:
            contender.search.beat(self.cost)
            contender.go(contender.search.run, min(seconds, self._time.left))

    def _going_on(self) -> list[TriedPlacement]:
        """Return the contenders whose search has begun and that may still become the best.

        The most promising comes first.
        """
        begun = [r for r in self.contenders if r.search is not None and self._may_win(r)]
        return sorted(begun, key=lambda contender: contender.promise)

    def _may_win(self, contender: TriedPlacement) -> bool:
        return not contender.done and (contender.bound or 0.0) < self.cost * (1 - CLOSED)


CUTS = (1, 2, 3, 4)  # stages per rank to try if the profile has one stage per rank


def bounded_placements(
    profile: Profile,
    microbatches: int,
    *,
    memory_limit: float | None = None,
    objective: Objective = Objective.PERIOD,
    copies: int | None = None,
    kinds: Collection[PlacementKind] = tuple(PlacementKind),
    change: Callable[[Problem], Problem] = lambda problem: problem,
    slow: Mapping[int, float] | None = None,
) -> list[TriedPlacement]:
    """Return all placements of ``profile`` to consider, with their bounds; none is searched yet.

    ``copies``: the maximum number of copies of the weights; None means 2 if the profile has what is
    needed to check whether two copies fit, else 1. ``kinds``: the kinds of placements to consider,
    of those with one copy. ``change``: a function that is applied to the problem of each placement.
    ``slow``: for each slow rank, how many times as long its ops take. Activations must fit in the
    memory limit, and in the part of ``device_memory`` that is not taken by the weights, gradients
    and optimizer state of a rank's stages.
    """

    def problem_of(profile: Profile, placement: Placement) -> Problem:
        limit = room(profile, placement, profile.limit_from(memory_limit))
        return change(Problem(profile, microbatches, placement, limit, objective))

    placed = list(placements(profile, kinds))
    if PlacementKind.CUSTOM in kinds and profile.num_stages > profile.ranks:
        shared = balanced(profile, slow or {}, profile.limit_from(memory_limit))
        if all(shared != placement for _, placement in placed):
            placed.append((profile, shared))
    entries = [_entry(problem_of(*each)) for each in placed]
    if copies != 1:
        why_not = why_one_way(profile, microbatches)
        if why_not is None and copies is None:
            why_not = why_unchecked(profile)
        entries.append(
            _entry(problem_of(profile, Placement.bidirectional(profile.ranks)))
            if why_not is None
            else TriedPlacement(BIDIRECTIONAL, None, why_not=why_not)
        )
    return entries


def best_placement(
    entries: Sequence[TriedPlacement],
    start: StartSolve,
    *,
    seconds: float = inf,
    should_stop: StoppingCriterion = NEVER,
) -> SuccessiveHalving:
    """Search ``entries``, the result of :func:`bounded_placements`, for the best schedule.

    A placement is left out if its bound is no lower than the best cost found. ``seconds``: the time
    for all searches together. In this time all placements get first schedules and a short search;
    then the more promising half of them is searched further, and so on; the most promising one gets
    the rest of the time. Without a time limit each search runs to its own end, as if its placement
    were the only one.
    """
    halving = SuccessiveHalving(entries, should_stop)
    halving.run(start, seconds)
    return halving


def _entry(problem: Problem) -> TriedPlacement:
    """Return the placement of ``problem`` with its bound.

    If no schedule fits in memory, the result has the reason instead of a bound.
    """
    placement, note = problem.placement, assumed(problem)
    name = placement.name
    if placement.kind is PlacementKind.CUSTOM:
        note = f"stages on ranks {','.join(map(str, placement.owners))}"
    try:
        return TriedPlacement(name, lower_bound(problem).value, note=note, problem=problem)
    except InfeasibleError as error:
        device = _device_lacks(problem, error)
        lacks = error if device is None and error.smallest is not None else None
        return TriedPlacement(name, None, why_not=device or str(error), note=note, lacks=lacks)


def placements(
    profile: Profile, kinds: Collection[PlacementKind] = tuple(PlacementKind)
) -> Iterator[tuple[Profile, Placement]]:
    """Yield ``profile`` with each placement of its stages that is of one of ``kinds``, once each.

    A profile with one stage per rank is also cut into more stages, at most its ``max_stages``; each
    placement of these stages is yielded with the cut profile. If the number of stages is no
    multiple of the number of ranks, nothing is yielded.
    """
    ranks, seen = profile.ranks, set()
    chunks, rest = divmod(profile.num_stages, ranks)
    for cut in cuts(profile) if (chunks, rest) == (1, 0) else (1,) if rest == 0 else ():
        placed, each = profile.split(cut) if cut > 1 else profile, cut * chunks
        found = [Placement.linear(ranks) if each == 1 else Placement.interleaved(ranks, each)]
        if each == 2:
            found.append(Placement.v(ranks))
        elif each % 2 == 0:
            found.append(Placement.wave(ranks, each // 2))
        for placement in found:
            if placement not in seen and placement.kind in kinds:
                seen.add(placement)
                yield placed, placement


def cuts(profile: Profile) -> tuple[int, ...]:
    """Return the numbers of stages per rank to try for a profile with one stage per rank.

    The result is (1,) if the stages name their layers, as half a stage might not consist of whole
    layers.
    """
    if any(stage.layers for stage in profile.stages):
        return (1,)
    most = profile.max_stages
    return CUTS if most is None else tuple(n for n in CUTS if n * profile.ranks <= most)


def room(profile: Profile, placement: Placement, limit: tuple[float, ...]) -> tuple[float, ...]:
    """Return the memory of each rank for activations, in the profile's unit.

    It is the rank's ``limit`` or, if that is less, the part of its ``device_memory`` that is not
    taken by the weights, gradients and optimizer state of its stages; at least 0.
    """
    if profile.device_memory is None:
        return limit
    return tuple(
        max(0.0, min(given, device - _kept_on(profile, placement, rank)))
        for rank, (given, device) in enumerate(zip(limit, profile.device_memory, strict=True))
    )


def _kept_on(profile: Profile, placement: Placement, rank: int) -> float:
    return sum(kept(profile.stages[s]) for s in placement.stages_of(rank))


def overfull(schedule: Schedule) -> tuple[int, float, float] | None:
    """Return the rank that exceeds its ``device_memory`` by the most, with two sizes.

    The sizes are the memory that the rank holds (activations, and the weights, gradients and
    optimizer state of its stages), and its ``device_memory``. Returns None if no rank exceeds its
    ``device_memory``, or if the profile does not give it.
    """
    problem, timing = schedule.problem, schedule.timing
    devices = problem.profile.device_memory
    if devices is None or timing is None:
        return None
    held = [
        peak + _kept_on(problem.profile, problem.placement, rank)
        for rank, peak in enumerate(timing.peak_memory)
    ]
    rank = max(range(problem.ranks), key=lambda at: held[at] - devices[at])
    lacks = held[rank] > devices[rank] * (1 + ROUNDING)
    return (rank, held[rank], devices[rank]) if lacks else None


def _device_lacks(problem: Problem, error: InfeasibleError) -> str | None:
    """Return why the device memory is too small for ``problem``.

    ``error``: the error that no schedule of ``problem`` fits in memory. Returns None if only the
    given memory limit is too small, or if the profile gives no ``device_memory``.
    """
    profile, rank, least = problem.profile, error.rank, error.smallest
    if profile.device_memory is None or rank is None or least is None:
        return None
    device = profile.device_memory[rank]
    stays = _kept_on(profile, problem.placement, rank)
    if device - stays > problem.memory_limit[rank]:
        return None
    return (
        f"device_memory {sufficient_size(device)} is too small for rank {rank}: weights, gradients "
        f"and optimizer state hold {sufficient_size(stays)} there, "
        f"one microbatch {sufficient_size(least)}"
    )


def kept(stage: StageProfile) -> float:
    """Return the memory of a stage's weights, gradients and optimizer state.

    Unknown sizes count as 0.
    """
    return sum(getattr(stage, key) or 0.0 for key in KEPT)
