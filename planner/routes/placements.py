"""The routes for profiles by stages: the best schedule with one placement, or over all
placements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.core.progress import Progress
from pipeloom.solver.core.schedule_cost import iteration_time
from pipeloom.solver.core.tolerances import CLOSED
from pipeloom.solver.optimize import Solving
from pipeloom.solver.placement.search import (
    SuccessiveHalving,
    TriedPlacement,
    best_placement,
    bounded_placements,
)

from ..inputs.documents import Document, Planned
from ..inputs.placement_spec import PlacementSpec
from ..inputs.problem_setup import Terms, make_problem, order_of, slowed
from ..results.candidates import COSTS_MORE, Candidate, candidates_table, over_all
from ..results.result import OPTIMIZER, NothingFits, Result
from ..solving.progress import Searching
from ..solving.search import Search


def one_placement(
    stages: Profile,
    terms: Terms,
    search: Search,
    spec: PlacementSpec,
    *,
    passing: str = "activations",
    start: Schedule | Planned | Document | None = None,
) -> Result:
    """Return the best schedule found for one placement.

    ``spec``: the placement. ``passing``: ``activations`` or ``weights``, what ranks send each
    other. ``start``: a schedule whose order of ops is the initial one; None means no initial order.
    Raises InputError if the profile or ``start`` does not match the placement.
    """
    problem = make_problem(stages, terms, spec, passing)
    order = None if start is None else order_of(start, problem)
    schedule = search.run(problem, start=order)
    cost, bound = iteration_time(schedule), schedule.known_report.lower_bound
    only = (Candidate(problem.placement.name, cost, bound),)
    cut = assumed_cut(stages, schedule)
    return Result(OPTIMIZER, schedule, candidates=only, assumed=cut, stopped=search.stopped)


def best_of_placements(
    profile: Profile, terms: Terms, search: Search, copies: int | None
) -> Result:
    """Return the best schedule over all placements.

    ``copies``: the maximum number of copies of the weights; None means 2 if it can be checked that
    two fit, else 1. A time limit of ``search`` is shared by the placements, whereas a work limit
    applies to each. Raises NothingFits, and InputError if the profile has fewer stages than ranks.
    """
    if profile.num_stages < profile.ranks:
        raise InputError(
            f"{terms.where}: stages: expected at least {profile.ranks}, one per rank, got "
            f"{profile.num_stages}: --placement FILE takes the rank of each stage"
        )
    asked = search.options
    bounded = bounded_placements(
        profile,
        terms.microbatches,
        copies=1 if terms.slow else copies,
        kinds=terms.kinds,
        change=partial(slowed, slow=terms.slow),
        slow=terms.slow,
        **terms.limits,
    )
    chosen = best_placement(
        bounded,
        partial(_search_at, search),
        seconds=math.inf if asked.work_limit is not None else asked.time_limit,
        should_stop=asked.should_stop,
    )
    best, candidates = chosen.best, tried_placements(chosen.tried, chosen.best)
    words = candidates_table("placement", candidates)
    if best is None:
        raise _nothing_fits(chosen, words, candidates)
    return Result(
        OPTIMIZER,
        best,
        candidates=candidates,
        assumed=assumed_cut(profile, best),
        words="\n".join(filter(None, [words, over_all("these placements", best, chosen.bound)])),
        stopped=search.stopped,
    )


def _nothing_fits(
    chosen: SuccessiveHalving, words: str, candidates: tuple[Candidate, ...]
) -> NothingFits:
    """Return the error for a search in which no placement fits in memory.

    It gives the smallest memory limit that would suffice for some placement or, if no limit would,
    the reason for each placement, in the table ``words``.
    """
    lacking = [(each.lacks, each) for each in chosen.tried if each.lacks]
    if not lacking:
        return NothingFits("no placement fits", words, candidates)
    lacks, least = min(lacking, key=lambda one: one[0].smallest or 0.0)
    known: dict[str, Any] = {key: getattr(lacks, key) for key in ("smallest", "rank", "given")}
    return NothingFits("", f"{least.why_not} (placement {least.name})", candidates, **known)


def assumed_cut(profile: Profile, made: Schedule) -> str | None:
    """Return, in words, into how many equal pieces each stage was cut, which the model may not
    allow.

    ``profile``: the profile before the cut. ``made``: the schedule of the cut stages. None if the
    stages were not cut.
    """
    pieces = made.problem.profile.num_stages // profile.num_stages
    if pieces == 1:
        return None
    most = "" if profile.max_stages is None else f" (max_stages is {profile.max_stages})"
    return (
        f"each stage is cut into {pieces} equal pieces{most}; --placement linear keeps stages "
        "whole, and a profile by layers has the times of real pieces"
    )


def _search_at(search: Search, problem: Problem, name: str) -> Solving:
    """Return the solve for one placement. It reports its progress to the listener of ``search``."""

    def told(now: Progress) -> None:
        search.progress(Searching(name, now))

    return Solving.of(problem, search.options, progress=told)


def tried_placements(
    tried: Sequence[TriedPlacement], best: Schedule | None, cuts: list[str] | None = None
) -> tuple[Candidate, ...]:
    """Return the placements as candidates, each with the reason why it is not the result.

    ``best``: the schedule that is the result, or None if there is none. ``cuts``: for each cut of
    layers that was searched, the name of its placement; None for a profile by stages.
    """
    cost = math.inf if best is None else iteration_time(best)
    return tuple(_tried(each, best, cost, cuts) for each in tried)


def _tried(
    one: TriedPlacement, best: Schedule | None, cost: float, cuts: list[str] | None
) -> Candidate:
    is_best = best is not None and one.name == best.problem.placement.name
    reason = one.why_not or COSTS_MORE
    if one.why_not is None and one.schedule is None:
        beaten = one.bound is not None and one.bound >= cost * (1 - CLOSED)
        reason = f"not searched: {'cannot be shorter' if beaten else 'the search ended before'}"
    return Candidate(
        one.name,
        None if one.schedule is None else one.cost,
        one.bound,
        None if is_best else reason,
        None if one.seconds is None else round(one.seconds, 3),
        one.note or None,
        None if cuts is None else cuts.count(one.name),
    )
