"""The best placement: those that fit a profile are bounded, and searched while they may win."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.placement import Placement, PlacementKind
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import sufficient_size

from ..bounds import lower_bound
from ..core.schedule_cost import iteration_time
from ..core.stopping import NEVER, StoppingCriterion
from ..core.tolerances import ROUNDING
from .replication import BIDIRECTIONAL, KEPT, assumed, why_one_way, why_unchecked
from .successive_halving import Contender, StartSolve, SuccessiveHalving

CUTS = (1, 2, 3, 4)  # stages a rank into which a profile of one stage a rank is cut


@dataclass(frozen=True, slots=True)
class TriedPlacement:
    """A placement: the bound on all of its schedules, and the best schedule found.

    ``bound`` is None where none fits, as ``why_not`` says; ``schedule`` is None where it was not
    searched, since no schedule of it beats one that was there, or for lack of time. ``lacks``: the
    memory limit that it needs, where nothing else is too small. ``note``: what is assumed.
    ``seconds``: how long it was searched, None where time is not limited; ``done``: whether that
    search had nothing left to do.
    """

    name: str
    bound: float | None
    schedule: Schedule | None = None
    why_not: str | None = None
    note: str = ""
    seconds: float | None = None
    done: bool = False
    lacks: InfeasibleError | None = None

    @property
    def cost(self) -> float:
        return math.inf if self.schedule is None else iteration_time(self.schedule)

    @classmethod
    def of(cls, found: Contender, *, timed: bool) -> TriedPlacement:
        known = found.name, found.bound, found.schedule
        seconds = found.spent if timed else None
        return cls(*known, note=found.note, seconds=seconds, done=found.done)


@dataclass(frozen=True, slots=True)
class Chosen:
    """``best``: the cheapest schedule of all placements, None where none fits; ``tried``: one each,
    the best first.

    No schedule of any of these placements costs less than ``bound``.
    """

    best: Schedule | None
    tried: tuple[TriedPlacement, ...]

    @property
    def bound(self) -> float | None:
        bounds = [each.bound for each in self.tried if each.bound is not None]
        return min(bounds, default=None)


def bounded_placements(
    profile: Profile,
    microbatches: int,
    *,
    memory_limit: float | None = None,
    objective: Objective = Objective.PERIOD,
    copies: int | None = None,
    kinds: Collection[PlacementKind] = tuple(PlacementKind),
    change: Callable[[Problem], Problem] = lambda problem: problem,
) -> list[Contender | TriedPlacement]:
    """All placements of ``profile`` with their bounds, with at most ``copies`` of its weights.

    ``copies`` None: 2 where the profile has what tells whether they fit, else 1. ``change`` is
    applied to the problem of each placement. Activations keep the memory limit, and what the
    weights, gradients and optimizer state of a rank's stages leave of ``device_memory``.
    """

    def problem_of(profile: Profile, placement: Placement) -> Problem:
        limit = room(profile, placement, profile.limit_from(memory_limit))
        return change(Problem(profile, microbatches, placement, limit, objective))

    entries = [_entry(problem_of(*placed)) for placed in placements(profile, kinds)]
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
    entries: Sequence[Contender | TriedPlacement],
    start: StartSolve,
    *,
    seconds: float = math.inf,
    abreast: int = 2,
    should_stop: StoppingCriterion = NEVER,
) -> Chosen:
    """The best schedule of all placements, as of :func:`bounded_placements`.

    A placement whose bound is no lower than the best cost found is left out.

    Without a limit each search runs to its own end, so that none by itself finds less. Within
    ``seconds`` in all, the placements get their first schedules and explore, ``abreast`` at a time;
    the more promising half goes on; the rest of the time is for the most promising.
    """
    halving = SuccessiveHalving(should_stop, abreast)
    halving.contenders = [one for one in entries if isinstance(one, Contender)]
    halving.run(start, seconds)
    timed, best = seconds < math.inf, halving.best
    tried = [TriedPlacement.of(one, timed=timed) for one in halving.contenders]
    tried += [one for one in entries if isinstance(one, TriedPlacement)]
    tried.sort(key=lambda one: (one.schedule is not best, one.cost, one.bound or math.inf))
    return Chosen(best, tuple(tried))


def _entry(problem: Problem) -> Contender | TriedPlacement:
    """A contender, or the reason why the placement does not fit."""
    name, note = problem.placement.name, assumed(problem)
    try:
        return Contender(name, lower_bound(problem).value, problem, note)
    except InfeasibleError as error:
        device = _device_lacks(problem, error)
        lacks = error if device is None and error.smallest is not None else None
        return TriedPlacement(name, None, why_not=device or str(error), note=note, lacks=lacks)


def placements(
    profile: Profile, kinds: Collection[PlacementKind] = tuple(PlacementKind)
) -> Iterator[tuple[Profile, Placement]]:
    """The profile, cut where it has one stage a rank into at most its ``max_stages``, with each
    placement of its stages that is of these ``kinds``, equal ones once."""
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
    """The numbers of stages a rank into which a profile of one stage a rank may be cut."""
    most = profile.max_stages
    return CUTS if most is None else tuple(n for n in CUTS if n * profile.ranks <= most)


def room(profile: Profile, placement: Placement, limit: tuple[float, ...]) -> tuple[float, ...]:
    """The room of each rank for activations: its ``limit``, or less where weights leave less."""
    if profile.device_memory is None:
        return limit
    return tuple(
        max(0.0, min(given, device - _kept_on(profile, placement, rank)))
        for rank, (given, device) in enumerate(zip(limit, profile.device_memory, strict=True))
    )


def _kept_on(profile: Profile, placement: Placement, rank: int) -> float:
    return sum(kept(profile.stages[s]) for s in placement.stages_of(rank))


def overfull(schedule: Schedule) -> tuple[int, float, float] | None:
    """The rank that exceeds ``device_memory`` most, the bytes that it holds and may hold, or None.

    A rank holds activations, and the weights, gradients and optimizer state of its stages.
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
    """Why the device is too small, and not a limit that was given; None where it is the limit."""
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
    """Weights, gradients and optimizer state of a stage; unknown ones count as 0."""
    return sum(getattr(stage, key) or 0.0 for key in KEPT)
