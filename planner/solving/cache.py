"""Schedules kept on disk by what was asked, verified again before they are trusted.

An entry's name is the hash of everything that decides the answer: the problem (profile,
microbatches, placement, memory limit, objective), what is compared, solver, seed, time or work
limit and version. What it holds is checked as if a stranger had written it: its own digest, the
verifier, and that it answers this question. Only its lower bound cannot be proven again in no time;
it is never taken where it is below the bound in closed form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from pipeloom import __version__
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_profile, dump_schedule, finite, parse_schedule, write_json
from pipeloom.ir.formats.json_reader import read_json
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.partition.candidate_pool import Way
from pipeloom.solver.partition.cuts import Rules
from pipeloom.solver.placement.search import Contender, TriedPlacement, room

FORMAT = "pipeloom.cache"
SAME = 1 - 1e-6
"""Bounds that differ by less are equal."""


class CacheQuestion(Protocol):
    """A question that an answer is kept of."""

    @property
    def key(self) -> str:
        """A hash: questions of the same key have the same answer."""
        ...

    def answered_by(self, schedule: Schedule) -> Problem | None:
        """The problem that ``schedule`` solves; None where that is not what was asked."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """A question to ``optimize``, by which its answer is kept."""

    problem: Problem
    options: SolveOptions
    by_step: bool = False

    @property
    def key(self) -> str:
        placement = self.problem.placement
        asked = {
            "profile": dump_profile(self.problem.profile),
            "microbatches": self.problem.microbatches,
            "placement": [placement.passing.value, placement.table],
            "memory_limit": finite(self.problem.memory_limit),
            "objective": self.problem.objective.value,
            "by_step": self.by_step,
        }
        return digest(asked | limits_of(self.options))

    def answered_by(self, schedule: Schedule) -> Problem | None:
        same = replace(self, problem=schedule.problem).key == self.key
        return self.problem if same else None


@dataclass(frozen=True, slots=True)
class PlacementQuestion:
    """Which of these placements, some of which do not fit, and which schedule."""

    placements: Sequence[Contender | TriedPlacement]
    options: SolveOptions

    @property
    def problems(self) -> Sequence[Problem]:
        """The placements that fit."""
        return [one.problem for one in self.placements if isinstance(one, Contender)]

    @property
    def key(self) -> str:
        """A hash: questions of the same key have the same answer."""
        fit = [Question(problem, self.options).key for problem in self.problems]
        others = [
            [one.name, one.why_not] for one in self.placements if isinstance(one, TriedPlacement)
        ]
        return digest({"placements": fit, "others": others})

    def answered_by(self, schedule: Schedule) -> Problem | None:
        """The problem of the schedule's placement; None where that is none of these."""
        return next((one for one in self.problems if one == schedule.problem), None)


@dataclass(frozen=True, slots=True)
class CutQuestion:
    """Which cut, placement and schedule; ``memory_limit``: one per rank."""

    profile: LayeredProfile
    microbatches: int
    placements: tuple[Placement, ...]
    memory_limit: tuple[float, ...]
    objective: Objective
    way: Way
    rules: Rules
    options: SolveOptions

    @property
    def key(self) -> str:
        """A hash: questions of the same key have the same answer."""
        profile = self.profile.as_stages
        asked = {
            "layers": dump_profile(profile),
            "tied": list(self.profile.tied),
            "microbatches": self.microbatches,
            "placements": [[p.name, p.table] for p in self.placements],
            "memory_limit": finite(self.memory_limit),
            "objective": self.objective.value,
            "way": self.way.value,
            "rules": [self.rules.least, self.rules.most],
        }
        return digest(asked | limits_of(self.options))

    def answered_by(self, schedule: Schedule) -> Problem | None:
        """The problem of the schedule's cut; None where it is no cut of these layers."""
        found = schedule.problem
        placement = next((p for p in self.placements if p == found.placement), None)
        sizes = [len(stage.layers) for stage in found.profile.stages]
        if placement is None or 0 in sizes or sum(sizes) != len(self.profile.layers):
            return None
        profile = self.profile.cut([0, *accumulate(sizes)][:-1])
        limit = room(profile, placement, self.memory_limit)
        problem = Problem(profile, self.microbatches, placement, limit, self.objective)
        return problem if found == problem else None


def limits_of(options: SolveOptions) -> dict[str, Any]:
    """The options that decide on an answer beside the problem, and the version that gave it."""
    names = ("solver", "seed", "time_limit", "work_limit")
    return {name: getattr(options, name) for name in names} | {"pipeloom": __version__}


class ScheduleCache:
    """A folder of answers. ``note`` is told, in a line, of entries that are of no use."""

    def __init__(self, folder: str, note: Callable[[str], None]) -> None:
        """Makes the folder. Raises InputError where that fails."""
        self._folder, self._note = Path(folder), note
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cache: expected a folder or a place for one, got {folder!r} ({error.strerror})"
            ) from None

    def path(self, question: CacheQuestion) -> Path:
        return self._folder / f"{question.key}.json"

    def find(self, question: CacheQuestion) -> tuple[Schedule, dict[str, Any]] | None:
        """The answer, if it is there and holds, with what else was kept of it."""
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
        self, question: CacheQuestion, schedule: Schedule, more: dict[str, Any] | None = None
    ) -> None:
        """Writes an answer, and ``more`` facts of it; a note says where it cannot be written."""
        content = {"schedule": dump_schedule(schedule), **({} if more is None else {"more": more})}
        entry = {"format": FORMAT, "version": 1, "digest": digest(content), **content}
        self.write(question.key, entry)

    def write(self, key: str, entry: dict[str, Any]) -> None:
        try:
            write_json(entry, str(self._folder / f"{key}.json"))
        except InputError as error:
            self._note(f"cache: {error}")


class NotKeptError(Exception):
    """An answer is not in the cache."""


class KeptAnswers(ScheduleCache):
    """A cache that is only read: where it has no answer a solve ends with NotKeptError."""

    def find(self, question: CacheQuestion) -> tuple[Schedule, dict[str, Any]]:
        found = super().find(question)
        if found is None:
            raise NotKeptError
        return found


class NewAnswers(ScheduleCache):
    """A cache on another machine, which is empty: its ``entries`` by key are written here."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}

    def find(self, question: CacheQuestion) -> None:
        return None

    def write(self, key: str, entry: dict[str, Any]) -> None:
        self.entries[key] = entry


def _checked(entry: dict[str, Any], question: CacheQuestion) -> tuple[Schedule, dict[str, Any]]:
    """The schedule of ``entry`` and more. Raises InputError with the first fault of it."""
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
    problem = question.answered_by(schedule)
    if problem is None:
        raise InputError("it answers another question")
    known = schedule.report.lower_bound if schedule.report else None
    if known is None or known < lower_bound(problem).value * SAME:
        raise InputError("its lower bound is weaker than the one at hand")
    return replace(schedule, problem=problem), content.get("more", {})


def digest(words: dict[str, Any]) -> str:
    """A hash of what can be written as JSON."""
    return sha256(json.dumps(words, sort_keys=True, allow_nan=False).encode()).hexdigest()
