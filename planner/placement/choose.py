"""``optimize --placement auto``: one search for each placement, and what is said of them in the
end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.report.text_table import table
from pipeloom.solver.core.incumbent import Progress
from pipeloom.solver.placement.search import Chosen, Tried, best_placement
from pipeloom.solver.placement.successive_halving import CLOSED, Known, cost_of
from pipeloom.solver.placement.successive_halving import Search as PlacementSearch
from pipeloom.solver.portfolio import Solving, cores

from ..answer import Answer, Candidate, NothingFits, gap_between
from ..cache import Question
from ..progress import Note, Searched, Searching
from ..search import Search


def plan_placement(
    profile: Profile,
    microbatches: int,
    search: Search,
    limits: Mapping[str, float],
    *,
    memory_limit: float | None,
    objective: Objective,
    copies: int | None,
    where: str,
) -> Answer:
    """The best schedule of all placements. ``limits``: ``seconds`` in all or for ``each``, or none.

    Raises NothingFits, InputError where the stages of the profile, called ``where``, cannot be
    shared out.
    """
    if profile.num_stages % profile.ranks:
        raise InputError(
            f"{where}: stages: expected a multiple of {profile.ranks} for --placement auto, "
            f"got {profile.num_stages}"
        )
    searches = PlacementSearches(search, limits)
    chosen = best_placement(
        profile,
        microbatches,
        searches,
        **limits,
        memory_limit=memory_limit,
        objective=objective,
        copies=copies,
        abreast=cores(),
        should_stop=search.should_stop,
        begins=partial(_announce, search, limits),
    )
    searches.keep()
    facts, words = {"choice": choice_facts(chosen)}, _words(chosen)
    if chosen.best is None:
        raise NothingFits("no placement fits", words, facts)
    entries = facts["choice"]["placements"]
    candidates = placement_candidates(entries, chosen.best.problem.placement.name)
    bound = chosen.bound or 0.0
    return Answer(chosen.best, search, bound, candidates, search.should_stop(), facts, words)


def _announce(search: Search, limits: Mapping[str, float], placements: int) -> None:
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

    def __init__(self, search: Search, limits: Mapping[str, float]) -> None:
        self._search, self._limits = search, limits
        self._made: list[_PlacementSearch] = []

    def __call__(self, problem: Problem, name: str) -> PlacementSearch:
        cache = self._search.cache
        known = cache and cache.find(self._question(problem))
        if known:
            return Known(known)
        self._made.append(_PlacementSearch(self._search, problem, name))
        return self._made[-1]

    def keep(self) -> None:
        """Puts what was found into the cache, once all is done."""
        cache = self._search.cache
        if cache is None or self._search.should_stop():
            return
        for each in self._made:
            # where each goes to its own end, one that was left before it is no answer
            left = not (each.ran or each.done) and "seconds" not in self._limits
            if each.found is not None and not left:
                cache.keep(self._question(each.problem), each.found)

    def _question(self, problem: Problem) -> Question:
        search, solver = self._search, self._search.solver
        if search.work_limit is None:
            solver += " for each placement" if "each" in self._limits else " in a race"
        return Question(problem, solver, search.seed, search.time_limit, search.work_limit)


class _PlacementSearch:
    """The optimizer at one placement, which is left and taken up again."""

    def __init__(self, search: Search, problem: Problem, name: str) -> None:
        self.problem, self.ran = problem, False
        self.found: Schedule | None = None
        self._search, self._name = search, name
        self._solving = Solving.of(
            problem,
            solver=search.solver,
            work_limit=search.work_limit,
            seed=search.seed,
            progress=self._tell,
            should_stop=search.should_stop,
            recompute_all=search.recompute_all,
        )

    def _tell(self, now: Progress) -> None:
        self._search.progress(Searching(self._name, now))

    @property
    def done(self) -> bool:
        return self._solving.done

    def begin(self, seconds: float) -> Schedule:
        return self._take(self._solving.begin(seconds))

    def run(self, seconds: float) -> Schedule:
        self.ran = True
        return self._take(self._solving.run(seconds))

    def explore(self, seconds: float) -> Schedule:
        self.found = self._solving.explore(seconds)
        return self.found

    def look(self) -> None:
        self._solving.look()

    def _take(self, schedule: Schedule) -> Schedule:
        self.found = schedule
        if self.done:
            ending = "stopped" if self._search.should_stop() else "work is done"
            self._search.progress(Searched(self._name, schedule, ending))
        return schedule


def choice_facts(chosen: Chosen) -> dict[str, Any]:
    """The placements, the best first, and the bound for all of them together."""
    cost = None if chosen.best is None else cost_of(chosen.best)
    gap = None if cost is None or chosen.bound is None else gap_between(cost, chosen.bound)
    return {
        "lower_bound": chosen.bound,
        "gap": gap,
        "placements": [placement_facts(each, cost) for each in chosen.tried],
    }


def placement_facts(tried: Tried, best: float | None) -> dict[str, Any]:
    """One placement; ``best``: the lowest cost that was found anywhere."""
    return {
        "placement": tried.name,
        "cost": None if tried.schedule is None else tried.cost,
        "lower_bound": tried.bound,
        "assumed": tried.note or None,
        "reason": tried.why_not or (None if tried.schedule else _not_searched(tried, best)),
    }


def _not_searched(tried: Tried, best: float | None) -> str:
    beaten = best is not None and tried.bound is not None and tried.bound >= best * (1 - CLOSED)
    return f"not searched: {'cannot be shorter' if beaten else 'no time left'}"


def placement_candidates(entries: list[dict[str, Any]], chosen: str) -> tuple[Candidate, ...]:
    """The placements of :func:`placement_facts`, ``chosen`` among them."""
    return tuple(
        Candidate(
            each["placement"],
            each["cost"],
            each["lower_bound"],
            None if each["placement"] == chosen else each["reason"] or "costs more",
        )
        for each in entries
    )


def placement_table(entries: list[dict[str, Any]]) -> str:
    """A table of the placements of :func:`placement_facts`."""
    from pipeloom.ir.units import duration

    def shown(value: float | None) -> str:
        return "-" if value is None else duration(value)

    rows = [
        [
            each["placement"],
            shown(each["cost"]),
            shown(each["lower_bound"]),
            "; ".join(part for part in (each["reason"], each.get("assumed")) if part),
        ]
        for each in entries
    ]
    return table(["placement", "found", "bound", ""], rows)


def _words(chosen: Chosen) -> str:
    """A table, and how far the best is from the best of all these placements."""
    from pipeloom.report.summaries import percent

    facts = choice_facts(chosen)
    lines = placement_table(facts["placements"])
    if facts["gap"] is None:
        return lines
    return f"{lines}\nof all these placements: at most {percent(facts['gap'])} from the best"
