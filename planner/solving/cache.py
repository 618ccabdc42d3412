"""A cache of schedules on disk, which are verified again before they are used.

An entry's name is the hash of everything that determines the answer: the problem (profile,
microbatches, placement, memory limit, objective), what is compared, solver, seed, time or work
limit, and version. Its content is not trusted: the digest, the verifier, and the match with the
question are checked. Only its lower bound cannot be proven again quickly; an entry whose bound is
below the closed-form bound is rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeloom import __version__
from pipeloom.ir.documents.json_reader import read_json
from pipeloom.ir.documents.struct import written
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_profile, dump_schedule, parse_schedule, write_json
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.partition.candidate_pool import Way
from pipeloom.solver.placement.search import Contender, TriedPlacement, room

from ..folders import made

if TYPE_CHECKING:
    from ..inputs.problem_setup import Terms

FORMAT = "pipeloom.cache"
SAME = 1 - 1e-6
"""Lower bounds with a ratio above this count as equal."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answer is cached.

    ``asked``: returns everything that determines the answer. ``solves``: returns the problem that a
    schedule solves; None if the schedule does not answer the question.
    """

    asked: Callable[[], dict[str, Any]]
    solves: Callable[[Schedule], Problem | None]

    @property
    def key(self) -> str:
        """The hash of the question. Questions with the same key have the same answer."""
        return digest(self.asked())


def about_problem(problem: Problem, options: SolveOptions, by_step: bool = False) -> Question:
    """The question for the best schedule of one problem."""

    def asked(one: Problem) -> dict[str, Any]:
        return {
            "profile": dump_profile(one.profile),
            "microbatches": one.microbatches,
            "placement": [one.placement.passing.value, one.placement.table],
            "memory_limit": written(one.memory_limit),
            "objective": one.objective.value,
            "by_step": by_step,
        } | limits_of(options)

    def solves(schedule: Schedule) -> Problem | None:
        return problem if digest(asked(schedule.problem)) == digest(asked(problem)) else None

    return Question(partial(asked, problem), solves)


def about_placements(
    placements: Sequence[Contender | TriedPlacement], options: SolveOptions
) -> Question:
    """The question for the best placement and its schedule, among these placements."""
    problems = [one.problem for one in placements if isinstance(one, Contender)]

    def asked() -> dict[str, Any]:
        fit = [about_problem(problem, options).key for problem in problems]
        others = [[one.name, one.why_not] for one in placements if isinstance(one, TriedPlacement)]
        return {"placements": fit, "others": others}

    return Question(asked, lambda found: next((p for p in problems if p == found.problem), None))


def about_cuts(
    profile: LayeredProfile,
    terms: Terms,
    placements: Sequence[Placement],
    way: Way,
    options: SolveOptions,
) -> Question:
    """The question for the best cut, placement and schedule."""
    limits = profile.cluster.limit_from(terms.memory_limit)

    def asked() -> dict[str, Any]:
        return {
            "layers": dump_profile(profile.as_stages),
            "tied": list(profile.tied),
            "microbatches": terms.microbatches,
            "placements": [[p.name, p.table] for p in placements],
            "memory_limit": written(limits),
            "objective": terms.objective.value,
            "way": way.value,
            "rules": [terms.rules.least, terms.rules.most],
        } | limits_of(options)

    def solves(schedule: Schedule) -> Problem | None:
        found = schedule.problem
        placement = next((p for p in placements if p == found.placement), None)
        sizes = [len(stage.layers) for stage in found.profile.stages]
        if placement is None or 0 in sizes or sum(sizes) != len(profile.layers):
            return None
        cut = profile.cut([0, *accumulate(sizes)][:-1])
        limit = room(cut, placement, limits)
        problem = Problem(cut, terms.microbatches, placement, limit, terms.objective)
        return problem if found == problem else None

    return Question(asked, solves)


def limits_of(options: SolveOptions) -> dict[str, Any]:
    """The options that determine an answer besides the problem, and the version."""
    names = ("solver", "seed", "time_limit", "work_limit")
    return {name: getattr(options, name) for name in names} | {"pipeloom": __version__}


class ScheduleCache:
    """A folder of answers. ``note`` is called with a line on each unusable entry."""

    def __init__(self, folder: str, note: Callable[[str], None]) -> None:
        """Create the folder. Raises InputError if that fails."""
        self._folder, self._note = made(folder, "cache"), note

    def path(self, question: Question) -> Path:
        return self._folder / f"{question.key}.json"

    def find(self, question: Question) -> tuple[Schedule, dict[str, Any]] | None:
        """The cached answer and the facts stored with it; None if it is absent or not valid."""
        path = self.path(question)
        if not path.exists():
            return None
        try:
            return _checked(read_json(str(path)), question)
        except InputError as error:
            reason = str(error).splitlines()[0].removeprefix(f"{path}: ")
            self._note(f"cache: {path} is ignored: {reason}")
            return None

    def keep(
        self, question: Question, schedule: Schedule, more: dict[str, Any] | None = None
    ) -> None:
        """Store an answer, and ``more`` facts; if it cannot be written, a note reports it."""
        content = {"schedule": dump_schedule(schedule), **({} if more is None else {"more": more})}
        entry = {"format": FORMAT, "version": 1, "digest": digest(content), **content}
        self.write(question.key, entry)

    def write(self, key: str, entry: dict[str, Any]) -> None:
        try:
            write_json(entry, str(self._folder / f"{key}.json"))
        except InputError as error:
            self._note(f"cache: {error}")


class NotKeptError(Exception):
    """The answer is not in the cache."""


class KeptAnswers(ScheduleCache):
    """A read-only cache: if it has no answer, the solve ends with NotKeptError."""

    def find(self, question: Question) -> tuple[Schedule, dict[str, Any]]:
        found = super().find(question)
        if found is None:
            raise NotKeptError
        return found


class NewAnswers(ScheduleCache):
    """An empty cache on another machine, which collects new ``entries`` by key."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}

    def find(self, question: Question) -> None:
        return None

    def write(self, key: str, entry: dict[str, Any]) -> None:
        self.entries[key] = entry


def _checked(entry: dict[str, Any], question: Question) -> tuple[Schedule, dict[str, Any]]:
    """The schedule and the other facts of ``entry``. Raises InputError with the first fault."""
    content: dict[str, Any] = {key: entry[key] for key in ("schedule", "more") if key in entry}
    if entry.get("format") != FORMAT or entry.get("version") != 1 or "schedule" not in content:
        raise InputError(f"expected a version 1 of {FORMAT}")
    if not all(isinstance(value, dict) for value in content.values()):
        raise InputError("expected objects in it")
    if entry.get("digest") != digest(content):
        raise InputError("its digest does not fit: it was damaged or changed")
    document = content["schedule"]
    violations = verify_schedule(document)
    if violations:
        raise InputError(f"its schedule is not valid: {violations[0]}")
    schedule = parse_schedule(document, "schedule")
    problem = question.solves(schedule)
    if problem is None:
        raise InputError("it answers another question")
    known = schedule.report.lower_bound if schedule.report else None
    if known is None or known < lower_bound(problem).value * SAME:
        raise InputError("its lower bound is weaker than the one at hand")
    return replace(schedule, problem=problem), content.get("more", {})


def digest(words: dict[str, Any]) -> str:
    """The hash of a JSON object."""
    return sha256(json.dumps(words, sort_keys=True, allow_nan=False).encode()).hexdigest()
