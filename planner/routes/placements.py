"""The best schedule of a profile by stages: for one placement, or over all of them.

For a given placement: a line on how much less other placements may cost, by their lower bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule, gap_between
from pipeloom.ir.units import duration
from pipeloom.report.summaries import from_optimal, percent
from pipeloom.solver.core.schedule_cost import iteration_time
from pipeloom.solver.core.tolerances import CLOSED
from pipeloom.solver.optimize import Solving
from pipeloom.solver.placement.search import (
    SuccessiveHalving,
    TriedPlacement,
    best_placement,
    bounded_placements,
)

from ..explain.answer import Answer, NothingFits
from ..inputs.documents import Document, Planned
from ..inputs.placement_spec import PlacementSpec
from ..inputs.problem_setup import Terms, make_problem, order_of, slowed
from ..results.candidates import Candidate, beyond_bounds, candidates_of, candidates_table
from ..solving.progress import Searching
from ..solving.search import Search

BARELY = 1.0
"""In seconds. A placement that may still be the best is reported as barely searched if its search
was shorter."""
MOST_BOUNDED = 20_000
"""Number of ops of a schedule above which other placements are not bounded."""


def one_placement(
    stages: Profile,
    terms: Terms,
    search: Search,
    spec: PlacementSpec,
    *,
    passing: str = "activations",
    start: Schedule | Planned | Document | None = None,
) -> Answer:
    """The best schedule of one placement; ``start`` is the initial order of ops."""
    problem = make_problem(stages, terms, spec, passing)
    order = None if start is None else order_of(start, problem)
    schedule = search.run(problem, start=order)
    cost, bound = iteration_time(schedule), schedule.known_report.lower_bound
    candidate = Candidate(problem.placement.name, cost, bound, None)
    return with_cut(Answer.of(schedule, search, [candidate]), stages)


def best_of_placements(
    profile: Profile, terms: Terms, search: Search, copies: int | None
) -> Answer:
    """The best schedule over all placements, with at most ``copies`` copies of the weights.

    The placements share the time limit of ``search``; a work limit applies to each. Raises
    NothingFits, and InputError if the profile has fewer stages than ranks.
    """
    if profile.num_stages < profile.ranks:
        raise InputError(
            f"{terms.where}: stages: expected at least {profile.ranks}, one per rank, got "
            f"{profile.num_stages}: --placement FILE takes the rank of each stage"
        )
    asked = search.options
    chosen = best_placement(
        _bounded(profile, terms, 1 if terms.slow else copies),
        partial(_search_at, search),
        seconds=math.inf if asked.work_limit is not None else asked.time_limit,
        should_stop=asked.should_stop,
    )
    best, bound = chosen.best, chosen.bound
    cost = None if best is None else iteration_time(best)
    gap = None if cost is None or bound is None else gap_between(cost, bound)
    entries = [placement_facts(each, cost) for each in chosen.tried]
    choice = {"choice": {"lower_bound": bound, "gap": gap, "placements": entries}}
    words = candidates_table("placement", entries)
    if best is None:
        raise _nothing_fits(chosen, words, choice)
    if gap is not None:
        least = f"as none takes less than {duration(bound or 0.0)}"
        words += f"\nover these placements: {from_optimal(gap)}, {least}{beyond_bounds(best)}"
    candidates = candidates_of("placement", entries, best.problem.placement.name)
    return with_cut(Answer.of(best, search, candidates, facts=choice, words=words), profile)


def _nothing_fits(chosen: SuccessiveHalving, words: str, facts: dict[str, Any]) -> NothingFits:
    """The error with the smallest sufficient memory limit, or each placement's reason."""
    lacking = [(each.lacks.smallest or 0.0, each) for each in chosen.tried if each.lacks]
    if not lacking:
        return NothingFits("no placement fits", words, facts)
    smallest, least = min(lacking, key=lambda one: one[0])
    known = {} if least.lacks is None else {"rank": least.lacks.rank, "given": least.lacks.given}
    line = f"{least.why_not} (placement {least.name})"
    return NothingFits("", line, facts, smallest=smallest, **known)


def assumed_cut(profile: Profile, made: Schedule) -> str | None:
    """How the stages were cut, which the model may not allow; None if they were not."""
    pieces = made.problem.profile.num_stages // profile.num_stages
    if pieces == 1:
        return None
    most = "" if profile.max_stages is None else f" (max_stages is {profile.max_stages})"
    return (
        f"each stage is cut into {pieces} equal pieces{most}; --placement linear keeps stages "
        "whole, and a profile by layers has the times of real pieces"
    )


def with_cut(answer: Answer, profile: Profile) -> Answer:
    """``answer``, with a line on how the stages of ``profile`` were cut, if they were."""
    if (cut := assumed_cut(profile, answer.schedule)) is None:
        return answer
    choice = answer.facts.get("choice", {}) | {"assumed": cut}
    return replace(answer, facts=answer.facts | {"choice": choice})


class PlacementSearch(Solving):
    """The optimizer for one placement. ``told`` is called with its schedule when it is done."""

    told: Callable[[Schedule], None]

    def begin(self, seconds: float) -> Schedule:
        return self._tell(super().begin(seconds))

    def run(self, seconds: float) -> Schedule:
        return self._tell(super().run(seconds))

    def _tell(self, schedule: Schedule) -> Schedule:
        if self.done:
            self.told(schedule)
        return schedule


def _search_at(search: Search, problem: Problem, name: str) -> PlacementSearch:
    """The search of one placement, which reports its progress to the listener of ``search``."""

    def told(schedule: Schedule) -> None:
        ending = "stopped" if search.stopped else "work is done"
        search.progress(Searching.ended(name, schedule, ending))

    made = PlacementSearch.of(
        problem, search.options, progress=lambda now: search.progress(Searching(name, now))
    )
    made.told = told
    return made


def placement_facts(tried: TriedPlacement, best: float | None) -> dict[str, Any]:
    """One placement as a JSON object; ``best``: the lowest cost of any placement."""
    found = tried.schedule
    rate = found and found.known_timing.bubble_rate(found.problem.objective)
    return {
        "placement": tried.name,
        "cost": None if found is None else tried.cost,
        "lower_bound": tried.bound,
        "bubble_rate": rate,
        "seconds": None if tried.seconds is None else round(tried.seconds, 3),
        "assumed": tried.note or None,
        "reason": tried.why_not or _little_searched(tried, best),
    }


def _little_searched(tried: TriedPlacement, best: float | None) -> str | None:
    """Why the placement was not searched, or was barely searched; None if it was searched."""
    beaten = best is not None and tried.bound is not None and tried.bound >= best * (1 - CLOSED)
    if tried.schedule is None:
        return f"not searched: {'cannot be shorter' if beaten else 'the search ended before'}"
    left = not (beaten or tried.done or tried.cost == best)
    barely = tried.seconds is not None and tried.seconds < BARELY
    return "barely searched" if left and barely else None


def with_others(answer: Answer, bounds: Callable[[], Mapping[str, float]]) -> Answer:
    """``answer`` with a line on the least of ``bounds``, which maps other placements to lower
    bounds.

    Nothing is added if none may cost less, or if computing the bounds would take long.
    """
    found = bounds() if answer.schedule.num_ops <= MOST_BOUNDED else {}
    if not found or answer.cost <= 0:
        return answer
    name = min(found, key=lambda name: found[name])
    share = 1 - found[name] / answer.cost
    if share <= CLOSED:
        return answer
    line = (
        f"another placement may cost up to {percent(share)} less: {name}, by its bound of "
        f"{duration(found[name])} (without --placement all are tried)"
    )
    words = f"{answer.words}\n{line}" if answer.words else line
    other = {"other_placement": {"placement": name, "lower_bound": found[name]}}
    return replace(answer, words=words, facts=answer.facts | other)


def other_bounds(profile: Profile, terms: Terms, own: Placement) -> dict[str, float]:
    """The lower bounds of all placements except the answer's ``own``."""
    if profile.num_stages % profile.ranks:
        return {}
    return {
        one.name: one.bound
        for one in _bounded(profile, terms, 1)
        if one.bound is not None and one.problem is not None and one.problem.placement != own
    }


def _bounded(profile: Profile, terms: Terms, copies: int | None) -> list[TriedPlacement]:
    """All placements with their lower bounds, and those that do not fit."""
    return bounded_placements(
        profile,
        terms.microbatches,
        copies=copies,
        kinds=terms.kinds,
        change=partial(slowed, slow=terms.slow),
        slow=terms.slow,
        **terms.limits,
    )
