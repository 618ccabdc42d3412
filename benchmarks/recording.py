"""The record of a benchmark, ``NAME/record.json``: its rows, and the origin of each row."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import Row

HERE = Path(__file__).parent
BEFORE = "recorded before origins were kept"
"""The text for an origin without commit and date."""


@dataclass(slots=True)
class Record:
    """The rows of a benchmark, and the distinct origins (``tools.environment``) to which they refer
    by index."""

    origins: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def of(cls, name: str) -> Record:
        """The record of the benchmark ``name``; an empty one if it has no file."""
        path = _record(name)
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else cls()

    def row(self, part: str, case: str) -> Row | None:
        """The recorded row of a case, or None if there is none."""
        return next((r for r in self.rows if (r["part"], r["case"]) == (part, case)), None)

    def add(self, row: Row, origin: dict[str, Any]) -> None:
        """Add a row with its origin; it replaces an earlier row of the same case."""
        if origin not in self.origins:
            self.origins.append(origin)
        new = row | {"origin": self.origins.index(origin)}
        before = self.row(row["part"], row["case"])
        if before is None:
            self.rows.append(new)
        else:
            self.rows[self.rows.index(before)] = new

    def arrange(self, parts: Sequence[str]) -> None:
        """Sort the rows in the order of ``parts``, and drop origins to which no row refers."""
        self.rows.sort(key=lambda row: parts.index(row["part"]))
        used = sorted({row["origin"] for row in self.rows})
        self.rows = [row | {"origin": used.index(row["origin"])} for row in self.rows]
        self.origins = [self.origins[number] for number in used]

    def write(self, name: str) -> None:
        """Write the file of the benchmark ``name``, with one row per line."""
        origins, rows = (",\n".join(map(json.dumps, each)) for each in (self.origins, self.rows))
        text = f'{{"origins": [\n{origins}\n],\n"rows": [\n{rows}\n]}}\n'
        _record(name).write_text(text, encoding="utf-8")

    def origin(self, row: Row) -> dict[str, Any]:
        return self.origins[row["origin"]]

    def when(self, rows: Iterable[Row]) -> str:
        """The days and the commits at which ``rows`` were recorded, as text."""
        return ", ".join(dict.fromkeys(words(self.origin(row)) for row in rows))


def words(origin: dict[str, Any]) -> str:
    """The day and the commit of an origin, as text."""
    if "date" not in origin:
        return BEFORE
    return f"{origin['date'][:10]}, {origin['commit'].rstrip('+')}"


def is_current(origin: dict[str, Any], here: dict[str, Any], rooms: Collection[str]) -> bool:
    """Whether a row with the given origin was measured with the current code of the folders
    ``rooms``.

    ``here``: the origin that a measurement made now would have.
    """
    known = origin.get("rooms", {})
    return all(known.get(room) == here["rooms"][room] for room in rooms)


def _record(name: str) -> Path:
    return HERE / name / "record.json"
