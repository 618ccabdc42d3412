"""The table of the README, and its sums."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from ..markdown import markdown
from .study import SAME, better, gain, gap

OTHERS = ("balanced", "even")
HEADER = ("seed", "P", "blocks", "M", "placement", "objective", "limit", "joint", *OTHERS, "gap")


def table(cells: Sequence[dict[str, Any]]) -> list[str]:
    """A line a model: the joint way's cost, how much more the others cost, how far any cut is
    below."""
    return markdown(HEADER, map(_line, cells), left=0)


def _line(cell: dict[str, Any]) -> list[str]:
    keys = ("seed", "ranks", "blocks", "microbatches", "placement", "objective", "limit")
    cost, left = cell["ways"]["joint"]["cost"], gap(cell)
    others = [_more(cell, other) for other in OTHERS]
    mark = "**" if better(cell) else ""
    found = "does not fit" if cost is None else f"{mark}{cost:.4g}{mark}"
    return [
        *(str(cell[key]) for key in keys),
        found,
        *others,
        "-" if left is None else f"{left:.1%}",
    ]


def _more(cell: dict[str, Any], other: str) -> str:
    costs = [cell["ways"][way]["cost"] for way in (other, "joint")]
    if costs[0] is None:
        return "does not fit"
    return f"{costs[0]:.4g}" if costs[1] is None else f"{costs[0] / costs[1] - 1:+.1%}"


def summary(cells: Sequence[dict[str, Any]]) -> list[str]:
    """How often each way is ahead, and by how much."""
    lines = [f"strictly better than both: {sum(map(better, cells))} of {len(cells)}"]
    for other in OTHERS:
        gains = [gain(cell, other) for cell in cells]
        known = [each for each in gains if each is not None]
        ahead = sum(each > SAME for each in known)
        behind = sum(each < -SAME for each in known)
        lines.append(
            f"against {other}: better {ahead}, equal {len(known) - ahead - behind}, worse "
            f"{behind}, "
            f"does not fit {len(gains) - len(known)}; costs {median(known):.1%} less in the "
            "median, "
            f"from {min(known):.1%} to {max(known):.1%}"
        )
    gaps = [left for cell in cells if (left := gap(cell)) is not None]
    met = sum(left <= SAME for left in gaps)
    lines.append(f"bound on all cuts: met in {met}, gap {median(gaps):.1%} in the median")
    return lines
