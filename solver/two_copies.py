"""Placements and schedules that ``--placement auto`` tries beside those of one copy of the weights and one op at a time."""

from __future__ import annotations

from collections.abc import Iterator

from pipeloom.ir.costs import Costs
from pipeloom.ir.errors import InputError
from pipeloom.ir.problem import Objective, Passing, Problem
from pipeloom.ir.profile import Profile
from pipeloom.ir.schedule import Schedule

from .families import find_family
from .families.base import Family

BIDIRECTIONAL = "bidirectional"
IN_PAIRS = ("dualpipe", "dualpipev")
"""Families that run an F and a BW at once, where the profile knows how long that takes."""


def why_one_way(profile: Profile, microbatches: int) -> str | None:
    """Why the microbatches cannot go both ways; None where they can."""
    if profile.ranks % 2:
        return f"needs an even number of ranks, not {profile.ranks}"
    if profile.num_stages != profile.ranks:
        return f"needs one stage a rank, not {profile.num_stages} on {profile.ranks} rank(s)"
    if microbatches < 2:
        return "needs two microbatches, one each way"
    return None


def in_pairs(
    profile: Profile, microbatches: int, memory_limit: float | None, objective: Objective
) -> Iterator[tuple[Family, Problem]]:
    """The families that run pairs, and their instances, where pairs save time."""
    if not profile.pairs_known or all(stage.saving <= 0 for stage in profile.stages):
        return
    for name in IN_PAIRS:
        family = find_family(name)
        try:
            yield family, family.problem(profile, microbatches, memory_limit, objective)
        except InputError:  # it has no such cut
            continue


def paired_work(problem: Problem) -> float:
    """No schedule costs less, with pairs or without: the busiest rank, each of its BW's in a pair.

    Proof: an op is in one pair at most. A pair takes no less than its ops less what that of its BW's stage saves
    (:meth:`.profile.Profile.pair_time`), and every BW is in one pair at most.
    """
    saved = [max(0.0, stage.saving) for stage in problem.profile.stages]
    costs = Costs.of(problem)
    each = costs.durations[:3].sum(axis=0) - saved
    busy = [0.0] * problem.ranks
    for stage, ranks in enumerate(costs.owner.tolist()):
        for rank in ranks:
            busy[rank] += float(each[stage])
    return max(busy)


def assumed(problem: Problem, *, paired: bool = False) -> str:
    """What a table has to say of a placement; empty where nothing."""
    words = ["an F and a BW at once"] if paired else []
    if problem.placement.passing is Passing.MIXED:
        words.append("two copies of the weights" + _counted(problem.profile))
        words.append("summing their gradients takes no time here")
    return ", ".join(words)


def _counted(profile: Profile) -> str:
    if profile.device_memory is None:
        return " (not counted: no device_memory)"
    sizes = ("weight_bytes", "grad_bytes", "optimizer_bytes")
    unknown = [key for key in sizes if any(getattr(s, key) is None for s in profile.stages)]
    return f" (unknown {', '.join(unknown)} counted as 0)" if unknown else ""


class Built:
    """A search that is over before it begins: of a schedule of a fixed shape."""

    done = True

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def begin(self, _: float) -> Schedule:
        return self._schedule

    run = explore = begin

    def look(self) -> None:
        pass
