"""A picture of the memory frontier: memory limit against bubble, bound, and published heuristic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pipeloom.report import Frontier, FrontierPoint, frontier_svg

SCOPE = "one stage per rank, passing activations"


def picture(row: str, cells: Iterable[dict[str, Any]]) -> str:
    """An SVG of the recorded cells of one row of table 5, with limits in units of M_B."""
    known = [cell for cell in cells if cell["row"] == row]
    points = [
        FrontierPoint(_limit(c), c["bubble"], c["bound_bubble"], c["status"] == "optimal")
        for c in known
    ]
    heuristic = [
        ("published heuristic", _limit(cell), cell["published"])
        for cell in known
        if cell["published"] is not None
    ]
    words = "{ranks} ranks, {microbatches} microbatches".format(**known[0])
    title = f"{row.rsplit('-', 1)[0]}, {words}"
    return frontier_svg(Frontier(title, "period", points, heuristic, scope=SCOPE))


def _limit(cell: dict[str, Any]) -> float:
    return float(cell["share"]) * int(cell["ranks"])
