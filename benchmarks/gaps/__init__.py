"""Gaps between the costs of schedules and their proven lower bounds.

The parts are: kinds of problems, the memory frontier, placements, and recomputation with offload.
"""

from __future__ import annotations

from collections.abc import Iterator

from .. import Row, Rows, of_part, parts
from . import frontier, kinds, placements, remat
from .picture import picture

ROOMS = ("ir", "solver")
_ALL = parts(kinds, frontier, placements, remat)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
WORSE = 1e-3
"""Relative increase above which a cost counts as worse. Smaller ones can be due to time limits."""


def worse(before: Row, now: Row) -> Iterator[str]:
    """Yield a line if the schedule costs more than the recorded one, by more than ``WORSE``."""
    if "cost" in before and now["cost"] > before["cost"] * (1 + WORSE):
        yield f"cost: {before['cost']:.6g} recorded, {now['cost']:.6g} now"


def files(rows: Rows) -> dict[str, str]:
    """The picture of the memory frontier of one model, as the text of an SVG file by path."""
    known = [*of_part(rows, "frontier below"), *of_part(rows, "frontier table5")]
    return {"docs/images/frontier-6.2b.svg": picture("6.2B-24", known)}
