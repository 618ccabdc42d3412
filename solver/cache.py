"""Schedules kept on disk by what was asked, verified again before they are trusted.

An entry's name is the hash of everything that decides the answer: the problem (profile,
microbatches, placement, memory limit, objective), solver, seed, time or work limit and version. What it
holds is checked as if a stranger had written it: its own digest, the verifier, and that it answers
this question. Only its lower bound cannot be proven again in no time; it is never taken where it is
below the bound in closed form.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from pipeloom import __version__
from pipeloom.ir.errors import InputError
from pipeloom.ir.files import dump_profile, dump_schedule, finite, parse_schedule, write_json
from pipeloom.ir.problem import Problem
from pipeloom.ir.reading import read_json
from pipeloom.ir.schedule import Schedule
from pipeloom.ir.verify import verify_schedule

from .bounds import lower_bound

FORMAT = "pipeloom.cache"
SAME = 1 - 1e-6
"""Bounds that differ by less are equal."""


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of ``optimize``."""

    problem: Problem
    solver: str
    seed: int
    time_limit: float
    work_limit: float | None = None

    @property
    def key(self) -> str:
        """A hash: questions of the same key have the same answer."""
        placement = self.problem.placement
        words = {
            "profile": dump_profile(self.problem.profile),
            "microbatches": self.problem.microbatches,
            "placement": [placement.passing.value, list(placement.owners)],
            "memory_limit": finite(self.problem.memory_limit),
            "objective": self.problem.objective.value,
            "solver": self.solver,
            "seed": self.seed,
            "time_limit": self.time_limit,
            "work_limit": self.work_limit,
            "pipeloom": __version__,
        }
        return _digest(words)


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

    def path(self, question: Question) -> Path:
        return self._folder / f"{question.key}.json"

    def find(self, question: Question) -> Schedule | None:
        """The answer, if it is there and holds."""
        path = self.path(question)
        if not path.exists():
            return None
        try:
            return _checked(read_json(str(path)), question)
        except InputError as error:
            reason = str(error).splitlines()[0].removeprefix(f"{path}: ")
            self._note(f"cache: {path} is ignored: {reason}")
            return None

    def keep(self, question: Question, schedule: Schedule) -> None:
        """Writes an answer; where it cannot be written a note says so."""
        document = dump_schedule(schedule)
        entry = {"format": FORMAT, "version": 1, "digest": _digest(document), "schedule": document}
        try:
            write_json(entry, str(self.path(question)))
        except InputError as error:
            self._note(f"cache: {error}")


def _checked(entry: dict[str, Any], question: Question) -> Schedule:
    """The schedule of ``entry``. Raises InputError with the first thing that is wrong with it."""
    document = entry.get("schedule")
    if entry.get("format") != FORMAT or entry.get("version") != 1 or not isinstance(document, dict):
        raise InputError(f"expected a version 1 of {FORMAT}")
    if entry.get("digest") != _digest(document):
        raise InputError("its digest does not fit: it was damaged or changed")
    violations = verify_schedule(document)
    if violations:
        raise InputError(f"its schedule is not valid: {violations[0]}")
    schedule = parse_schedule(document, "schedule")
    if replace(question, problem=schedule.problem).key != question.key:
        raise InputError("it answers another question")
    known = schedule.report.lower_bound if schedule.report else None
    if known is None or known < lower_bound(question.problem).value * SAME:
        raise InputError("its lower bound is weaker than the one at hand")
    return replace(schedule, problem=question.problem)


def _digest(words: dict[str, Any]) -> str:
    return sha256(json.dumps(words, sort_keys=True, allow_nan=False).encode()).hexdigest()
