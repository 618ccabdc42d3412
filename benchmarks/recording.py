"""Record of a benchmark: its rows and the origin of each, in ``NAME/record.json``."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pipeloom
from tools.size import is_string

from . import Row

HERE = Path(__file__).parent
BEFORE = "recorded before origins were kept"
"""The note of an origin without commit, code, load and date."""
_PACKAGES = ("numpy", "numba", "ortools", "pulp", "torch")
_LIBRARY = Path(pipeloom.__file__).parent
ROOMS = ("ir", "solver", "compiler", "runtime", "planner", "report", "cli")


@dataclass(slots=True)
class Record:
    """The rows of a benchmark, each with the number of its origin (:func:`environment`)."""

    origins: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def of(cls, name: str) -> Record:
        """The record of a benchmark; empty if there is none."""
        path = _record(name)
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else cls()

    def row(self, part: str, case: str) -> Row | None:
        """The row of a case, if it is recorded."""
        return next((r for r in self.rows if (r["part"], r["case"]) == (part, case)), None)

    def add(self, row: Row, origin: dict[str, Any]) -> None:
        """Puts a row in place of the one of its case, or at the end."""
        if origin not in self.origins:
            self.origins.append(origin)
        new, before = (
            row | {"origin": self.origins.index(origin)},
            self.row(row["part"], row["case"]),
        )
        if before is None:
            self.rows.append(new)
        else:
            self.rows[self.rows.index(before)] = new

    def arrange(self, parts: Sequence[str]) -> None:
        """Orders rows by part, and drops origins that no row has."""
        self.rows.sort(key=lambda row: parts.index(row["part"]))
        used = sorted({row["origin"] for row in self.rows})
        self.rows = [row | {"origin": used.index(row["origin"])} for row in self.rows]
        self.origins = [self.origins[number] for number in used]

    def write(self, name: str) -> None:
        """Writes the file, one line a row."""
        origins, rows = (",\n".join(map(json.dumps, each)) for each in (self.origins, self.rows))
        text = f'{{"origins": [\n{origins}\n],\n"rows": [\n{rows}\n]}}\n'
        _record(name).write_text(text, encoding="utf-8")

    def origin(self, row: Row) -> dict[str, Any]:
        return self.origins[row["origin"]]

    def when(self, rows: Iterable[Row]) -> str:
        """The commits and days at which rows were recorded."""
        found = dict.fromkeys(words(self.origin(row)) for row in rows)
        return ", ".join(found)


def words(origin: dict[str, Any]) -> str:
    """The day and the commit of an origin, with changes or without."""
    if "date" not in origin:
        return BEFORE
    return f"{origin['date'][:10]}, {origin['commit'].rstrip('+')}"


def is_current(origin: dict[str, Any], here: dict[str, Any], rooms: Collection[str]) -> bool:
    """Whether a figure of this origin was measured with the code of ``here`` in these rooms."""
    known = origin.get("rooms", {})
    return all(known.get(room) == here["rooms"][room] for room in rooms)


def _record(name: str) -> Path:
    return HERE / name / "record.json"


def environment() -> dict[str, Any]:
    """The origin of a figure: :func:`machine`, the date, the load average of the last minute, the
    commit (with ``+`` where files differ from it) and, by room of the library, a hash of its code,
    which comments and docstrings do not change."""
    found = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": _commit()}
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    rooms = {room: _hash(_LIBRARY / room) for room in ROOMS}
    return found | {"load": load} | machine() | {"rooms": rooms}


def machine() -> dict[str, str]:
    """The processor and the versions of those packages that are installed."""
    found = {"cpu": _cpu(), "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _commit() -> str | None:
    """The commit of the library that is measured; None outside of a checkout."""
    try:
        return _git("rev-parse", "--short=12", "HEAD") + "+" * bool(_git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    command = ["git", "-C", str(_LIBRARY.resolve()), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@cache
def _hash(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.resolve().rglob("*.py")):
        found.update(code(path.read_text(encoding="utf-8")).encode())
    return found.hexdigest()[:12]


def code(source: str) -> str:
    """The syntax tree of ``source`` in words, without docstrings: strings that are statements."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for body in (part for part in vars(node).values() if isinstance(part, list)):
            body[:] = [each for each in body if not is_string(each)]
    return ast.dump(tree)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} cores)" if names else platform.machine()
