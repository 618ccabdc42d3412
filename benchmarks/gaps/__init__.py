"""Gaps between the costs of schedules and their proven lower bounds.

The parts are: kinds of problems, the memory frontier, placements, and recomputation with offload.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeloom.report import Frontier, FrontierPoint, frontier_svg

from .. import Row, Rows, of_part, parts
from . import frontier, kinds, placements, remat

ROOMS = ("ir", "solver")
_ALL = parts(kinds, frontier, placements, remat)
cases, measure, judge, columns = _ALL.cases, _ALL.measure, _ALL.judge, _ALL.columns
SCOPE = "one stage per rank, passing activations"
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


def picture(row: str, cells: Rows) -> str:
    """The text of an SVG file with the recorded figures for one row of table 5.

    ``cells``: recorded rows; only those for ``row`` are shown. Limits are in units of M_B.
    """
    known = [
        cell | {"limit": cell["share"] * cell["ranks"]} for cell in cells if cell["row"] == row
    ]
    points = [
        FrontierPoint(c["limit"], c["bubble"], c["bound_bubble"], c["status"] == "optimal")
        for c in known
    ]
    heuristic = [
        ("published heuristic", cell["limit"], cell["published"])
        for cell in known
        if cell["published"] is not None
    ]
    words = "{ranks} ranks, {microbatches} microbatches".format(**known[0])
    title = f"{row.rsplit('-', 1)[0]}, {words}"
    return frontier_svg(Frontier(title, "period", points, heuristic, scope=SCOPE))
