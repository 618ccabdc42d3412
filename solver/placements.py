"""Which placement is best: those that fit a profile are bounded, and searched while they can still win."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.problem import Objective, Placement, Problem
from pipeloom.ir.profile import Profile, StageProfile
from pipeloom.ir.schedule import Schedule

from .bounds import lower_bound

Search: TypeAlias = Callable[[Problem, str, float], Schedule]
"""The optimizer, given a problem, the name of its placement, and its share of the time."""

CUTS = (1, 2, 3, 4)
"""Stages a rank into which a profile of one stage a rank is cut."""
CLOSED = 1e-6


@dataclass(frozen=True, slots=True)
class Tried:
    """A placement: the bound on all of its schedules, and the best schedule found.

    ``bound`` is None where none fits, as ``why_not`` says; ``schedule`` is None where it was not searched, since no schedule
    of it beats one that was there, or for lack of time.
    """

    name: str
    bound: float | None
    schedule: Schedule | None = None
    why_not: str | None = None

    @property
    def cost(self) -> float:
        return math.inf if self.schedule is None else cost_of(self.schedule)


@dataclass(frozen=True, slots=True)
class Chosen:
    """``best``: the cheapest schedule of all placements, None where none fits; ``tried``: one each.

    No schedule of any of these placements costs less than ``bound``.
    """

    best: Schedule | None
    tried: tuple[Tried, ...]

    @property
    def bound(self) -> float | None:
        bounds = [each.bound for each in self.tried if each.bound is not None]
        return min(bounds, default=None)


def best_placement(
    profile: Profile,
    microbatches: int,
    search: Search,
    *,
    memory_limit: float | None = None,
    objective: Objective = Objective.PERIOD,
    should_stop: Callable[[], bool] = lambda: False,
) -> Chosen:
    """Searches the placements of ``profile``, those with the least bound first.

    Activations keep the memory limit, and what the weights, gradients and optimizer state of a
    rank's stages leave of ``device_memory``. A placement whose bound is no lower than the best cost found is left out.
    """
    tried, open_ = [], []
    for placed, placement in placements(profile):
        limit = room(placed, placement, placed.limit_from(memory_limit))
        problem = Problem(placed, microbatches, placement, limit, objective)
        try:
            open_.append((lower_bound(problem).value, placement.name, problem))
        except InfeasibleError as error:
            tried.append(Tried(placement.name, None, why_not=str(error)))
    open_.sort(key=lambda entry: entry[0])
    best: Schedule | None = None
    for bound, name, problem in open_:
        cost = math.inf if best is None else cost_of(best)
        if (best is not None and should_stop()) or cost * (1 - CLOSED) <= bound:
            tried.append(Tried(name, bound))
            continue
        found = search(problem, name, 1 / len(open_))
        known = found.report.lower_bound if found.report else None
        tried.append(Tried(name, max(bound, known or 0.0), found))
        best = found if cost_of(found) < cost else best
    tried.sort(key=lambda each: (each.cost, each.bound or math.inf))
    return Chosen(best, tuple(tried))


def placements(profile: Profile) -> Iterator[tuple[Profile, Placement]]:
    """The profile, cut where it has one stage a rank, with each placement of its stages; equal ones once."""
    ranks, seen = profile.ranks, set()
    chunks, rest = divmod(profile.num_stages, ranks)
    for cut in CUTS if (chunks, rest) == (1, 0) else (1,) if rest == 0 else ():
        placed, each = profile.split(cut) if cut > 1 else profile, cut * chunks
        found = [Placement.linear(ranks) if each == 1 else Placement.interleaved(ranks, each)]
        if each == 2:
            found.append(Placement.v(ranks))
        elif each % 2 == 0:
            found.append(Placement.wave(ranks, each // 2))
        for placement in found:
            if placement.owners not in seen:
                seen.add(placement.owners)
                yield placed, placement


def room(profile: Profile, placement: Placement, limit: tuple[float, ...]) -> tuple[float, ...]:
    """What each rank has for activations: its ``limit``, or less where weights leave less."""
    if profile.device_memory is None:
        return limit
    return tuple(
        max(0.0, min(given, device - sum(kept(profile.stages[s]) for s in placement.stages_of(rank))))
        for rank, (given, device) in enumerate(zip(limit, profile.device_memory, strict=True))
    )  # fmt: skip


def kept(stage: StageProfile) -> float:
    """Weights, gradients and optimizer state of a stage; unknown ones count as 0."""
    return sum(
        size or 0.0 for size in (stage.weight_bytes, stage.grad_bytes, stage.optimizer_bytes)
    )


def cost_of(schedule: Schedule) -> float:
    """Of a timed schedule, by its problem's objective."""
    assert schedule.timing is not None
    return schedule.timing.cost(schedule.problem.objective)
