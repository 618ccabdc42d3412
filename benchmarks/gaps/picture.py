"""A picture of the memory frontier: bubble rate by memory limit, with lower bounds and the
published heuristic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeloom.report import Frontier, FrontierPoint, frontier_svg

SCOPE = "one stage per rank, passing activations"


def picture(row: str, cells: Iterable[dict[str, Any]]) -> str:
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
