"""``optimize --placement auto``: one search for each placement, and a table of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import PlacementKind
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule, gap_between
from pipeloom.report.summaries import percent
from pipeloom.solver.core.progress import Progress
from pipeloom.solver.core.schedule_cost import iteration_time
from pipeloom.solver.core.tolerances import CLOSED
from pipeloom.solver.core.worker_threads import workers_abreast
from pipeloom.solver.optimize import Solving
from pipeloom.solver.placement.search import Chosen, TriedPlacement, best_placement
from pipeloom.solver.placement.successive_halving import Known

from ..explain.answer import Answer, NothingFits
from ..explain.candidates import candidates_of, candidates_table
from ..solving.cache import Question
from ..solving.progress import Note, Searched, Searching
from ..solving.search import CachedSearch


def plan_placement(
    profile: Profile,
    microbatches: int,
    search: CachedSearch,
    *,
    each: bool,
    memory_limit: float | None,
    objective: Objective,
    copies: int | None,
    where: str,
    kinds: Collection[PlacementKind] = tuple(PlacementKind),
) -> Answer:
    """The best schedule of all placements of these ``kinds``.

    ``each``: the seconds are for each of them, not for all.

    Raises NothingFits, InputError where the stages of the profile, called ``where``, cannot be
    shared out.
    """
    if profile.num_stages % profile.ranks:
        raise InputError(
            f"{where}: stages: expected a multiple of {profile.ranks} for --placement auto, "
            f"got {profile.num_stages}"
        )
    seconds = {"each" if each else "seconds": search.options.time_limit}
    limits = seconds if search.options.work_limit is None else {}
    searches = PlacementSearches(search, limits)
    chosen = best_placement(
        profile,
        microbatches,
        searches,
        **limits,
        memory_limit=memory_limit,
        objective=objective,
        copies=copies,
        kinds=kinds,
        abreast=workers_abreast(),
        should_stop=search.options.should_stop,
        begins=partial(_announce, search, limits),
    )
    searches.keep(chosen)
    facts, words = {"choice": choice_facts(chosen)}, _words(chosen)
    if chosen.best is None:
        raise NothingFits("no placement fits", words, facts)
    entries = facts["choice"]["placements"]
    candidates = candidates_of("placement", entries, chosen.best.problem.placement.name)
    cost, bound = iteration_time(chosen.best), chosen.bound or 0.0
    return Answer(chosen.best, search, cost, bound, candidates, search.stopped, facts, words)


def _announce(search: CachedSearch, limits: Mapping[str, float], placements: int) -> None:
    """How long it may take, where nobody said how long it shall."""
    each = limits.get("each")
    if placements and each is not None:
        most = (placements + 1) * each
        line = (
            f"{placements} placements fit: {each:g} s for each that may win and for the best "
            f"again, {most:g} s at most (--time-limit S: S seconds in all)"
        )
        search.progress(Note(line, routine=True))


class PlacementSearches:
    """Makes the search of each placement, or takes its answer from the cache.

    With a limit on work that answer is the one of the placement by itself. Within seconds it is
    not: placements share them, or the best has more of them; so it is kept by another name.
    """

    def __init__(self, search: CachedSearch, limits: Mapping[str, float]) -> None:
        self._search, self._limits = search, limits
        self._made: dict[str, PlacementSearch] = {}

    def __call__(self, problem: Problem, name: str) -> PlacementSearch | Known:
        cache = self._search.cache
        known = cache and cache.find(self._question(problem))
        if known:
            return Known(known)

        def told(now: Progress) -> None:
            self._search.progress(Searching(name, now))

        self._made[name] = PlacementSearch.of(problem, self._search.options, progress=told)
        self._made[name].told = partial(self._end, name)
        return self._made[name]

    def _end(self, name: str, schedule: Schedule) -> None:
        ending = "stopped" if self._search.stopped else "work is done"
        self._search.progress(Searched(name, schedule, ending))

    def keep(self, chosen: Chosen) -> None:
        """Puts what was found into the cache, once all is done."""
        cache = self._search.cache
        if cache is None or self._search.stopped:
            return
        for tried in chosen.tried:
            made = self._made.get(tried.name)
            # where each goes to its own end, one that was left before it is no answer
            if made and tried.schedule and (made.ran or made.done or "seconds" in self._limits):
                cache.keep(self._question(tried.schedule.problem), tried.schedule)

    def _question(self, problem: Problem) -> Question:
        asked = self._search.options
        if asked.work_limit is None:
            shared = " for each placement" if "each" in self._limits else " by halving"
            asked = replace(asked, solver=asked.solver + shared)
        return Question(problem, asked)


class PlacementSearch(Solving):
    """The optimizer at one placement. ``ran``: whether it was more than begun; ``told``: of its
    schedule once it is done."""

    ran = False
    told: Callable[[Schedule], None]

    def begin(self, seconds: float) -> Schedule:
        return self._tell(super().begin(seconds))

    def run(self, seconds: float) -> Schedule:
        self.ran = True
        return self._tell(super().run(seconds))

    def _tell(self, schedule: Schedule) -> Schedule:
        if self.done:
            self.told(schedule)
        return schedule


def choice_facts(chosen: Chosen) -> dict[str, Any]:
    """The placements, the best first, and the bound for all of them together."""
    cost = None if chosen.best is None else iteration_time(chosen.best)
    gap = None if cost is None or chosen.bound is None else gap_between(cost, chosen.bound)
    return {
        "lower_bound": chosen.bound,
        "gap": gap,
        "placements": [placement_facts(each, cost) for each in chosen.tried],
    }


def placement_facts(tried: TriedPlacement, best: float | None) -> dict[str, Any]:
    """One placement; ``best``: the lowest cost that was found anywhere."""
    return {
        "placement": tried.name,
        "cost": None if tried.schedule is None else tried.cost,
        "lower_bound": tried.bound,
        "assumed": tried.note or None,
        "reason": tried.why_not or (None if tried.schedule else _not_searched(tried, best)),
    }


def _not_searched(tried: TriedPlacement, best: float | None) -> str:
    beaten = best is not None and tried.bound is not None and tried.bound >= best * (1 - CLOSED)
    return f"not searched: {'cannot be shorter' if beaten else 'the search ended before'}"


def _words(chosen: Chosen) -> str:
    """A table, and how far the best is from the best of all these placements."""
    facts = choice_facts(chosen)
    lines = candidates_table("placement", facts["placements"])
    if facts["gap"] is None:
        return lines
    return f"{lines}\nof all these placements: at most {percent(facts['gap'])} from the best"
