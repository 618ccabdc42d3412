"""Record of a benchmark: its rows and the origin of each, in ``NAME/record.json``."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import Row

HERE = Path(__file__).parent
BEFORE = "recorded before origins were kept"
"""The note of an origin without commit, code, load and date."""


@dataclass(slots=True)
class Record:
    """The rows of a benchmark, each with the number of its origin (``tools.environment``)."""

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
        new = row | {"origin": self.origins.index(origin)}
        before = self.row(row["part"], row["case"])
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
