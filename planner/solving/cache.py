"""A cache of results of ``optimize`` on disk. Every entry is verified again before it is used.

An entry's name is the hash of everything that determines the result: the profile and the other
arguments of the request, and the version of pipeloom. Its content is not trusted: the digest of the
content, the match with the request, and the schedule (by the verifier) are checked. Only the lower
bound cannot be proven again quickly; an entry is rejected if its lower bound is below the
closed-form bound.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from pipeloom import __version__
from pipeloom.ir.documents.json_reader import read_json
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import parse_schedule, write_json
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import lower_bound

from ..folders import made
from .progress import Listener, Note

SAME = 1 - 1e-6
"""Two lower bounds count as equal if the ratio of the smaller to the larger is at least this."""


class ResultCache:
    """A folder with a file, an entry, for each result. ``tell`` receives a note when an entry is
    used or unusable."""

    def __init__(self, folder: str, tell: Listener) -> None:
        """Create the folder if it does not exist. Raises InputError if it cannot be created."""
        self._folder, self._tell = made(folder, "cache"), tell

    def path(self, key: str) -> Path:
        return self._folder / f"{key}.json"

    def find(self, key: str) -> tuple[Schedule, dict[str, Any]] | None:
        """Return the schedule that is cached under ``key``, and the other JSON values stored with
        it.

        Returns None if there is no entry, or if the entry is not valid, which a note reports.
        """
        path = self.path(key)
        if not path.exists():
            return None
        try:
            found = _checked(read_json(str(path)), key)
        except InputError as error:
            reason = str(error).splitlines()[0].removeprefix(f"{path}: ")
            self._tell(Note(f"cache: {path} is ignored: {reason}"))
            return None
        self._tell(Note(f"taken from the cache: {path}"))
        return found

    def keep(self, key: str, schedule: dict[str, Any], facts: dict[str, Any]) -> None:
        """Store a schedule's JSON object and other JSON values of the result, ``facts``, under
        ``key``. If they cannot be written, a note reports this."""
        content = {"key": key, "schedule": schedule, "facts": facts}
        entry = {"digest": digest(content), **content}
        try:
            write_json(entry, str(self.path(key)))
        except InputError as error:
            self._tell(Note(f"cache: {error}"))


def key_of(question: Mapping[str, Any]) -> str:
    """Return the key of a result: the hash of everything that determines it.

    ``question``: the arguments of the request; the version of pipeloom is added. Equal keys have
    equal results.
    """
    return digest({**question, "pipeloom": __version__})


def _checked(entry: dict[str, Any], key: str) -> tuple[Schedule, dict[str, Any]]:
    """Return the schedule of a cache entry, and the other JSON values of its result.

    ``entry``: the JSON object in the file. ``key``: the key that the entry must have. Raises
    InputError with the first fault found.
    """
    content: dict[str, Any] = {name: entry.get(name) for name in ("key", "schedule", "facts")}
    if entry.get("digest") != digest(content):
        raise InputError("its digest does not fit: it was damaged or changed")
    if content["key"] != key:
        raise InputError("it answers another question")
    violations = verify_schedule(content["schedule"])
    if violations:
        raise InputError(f"its schedule is not valid: {violations[0]}")
    schedule = parse_schedule(content["schedule"], "schedule")
    known = schedule.report.lower_bound if schedule.report else None
    if known is None or known < lower_bound(schedule.problem).value * SAME:
        raise InputError("its lower bound is weaker than the one at hand")
    return schedule, content["facts"]


def digest(words: dict[str, Any]) -> str:
    """Return the SHA-256 hash of a JSON object, as hexadecimal digits."""
    return sha256(json.dumps(words, sort_keys=True, allow_nan=False).encode()).hexdigest()
