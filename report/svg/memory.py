"""A chart of the memory held over time, below a timeline."""

from __future__ import annotations

import math

from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import duration, memory_size, memory_unit

from ..bars import fullest, memory_steps
from .elements import FAINT, element, label, number
from .grid import LEFT, Grid

MEMORY_CHART, SPACE, HEIGHT = 148.0, 36.0, 104.0
FULLEST, OTHER, LIMIT = "#2f4a6b", "#9db0c6", "#c2416b"


def memory_chart(schedule: Schedule, grid: Grid, top: float) -> list[str]:
    """A line for each rank, with that of the fullest rank on top, and the memory limits.

    All charts of a picture have the same scale. Sizes are the profile's, even if times are
    measured.
    """
    if grid.memory <= 0:
        return [label("no memory in the profile", LEFT, top + SPACE, class_="muted")]
    ranks, limits = schedule.problem.ranks, schedule.problem.memory_limit
    zero = top + SPACE + HEIGHT
    scale = HEIGHT / grid.memory
    steps = [memory_steps(schedule, rank) for rank in range(ranks)]
    peaks = [max(((held, -at) for at, held in row), default=(0.0, 0.0)) for row in steps]
    dark = fullest(schedule)
    peak, at = memory_size(peaks[dark][0]), duration(-peaks[dark][1])
    words = f"memory held{memory_unit(grid.memory)}; fullest (dark): rank {dark}, {peak} at {at}"
    lines = [label(words, LEFT, top + SPACE - 14, class_="muted")]
    for size in (0.0, grid.memory / 2, grid.memory):
        y = zero - size * scale
        lines.append(label(memory_size(size), LEFT - 8, y + 4, class_="muted", text_anchor="end"))
        lines.append(element("path", d=f"M{LEFT} {number(y)}H{number(grid.right)}", stroke=FAINT))
    for rank in sorted(range(ranks), key=lambda rank: rank == dark):
        stroke, width = (FULLEST, 2.0) if rank == dark else (OTHER, 1.0)
        style = f"fill:none;stroke:{stroke};stroke-width:{width}"
        path = _path(steps[rank], grid, zero, scale)
        lines.append(element("path", f"<title>rank {rank}</title>", d=path, style=style))
    for limit in filter(math.isfinite, sorted(set(limits))):
        y = zero - limit * scale
        path = f"M{LEFT} {number(y)}H{number(grid.right)}"
        lines.append(element("path", d=path, stroke=LIMIT, stroke_dasharray="6 4"))
        lines.append(label(f"limit {memory_size(limit)}", grid.right + 16, y + 4, fill=LIMIT))
    return lines


def _path(steps: list[tuple[float, float]], grid: Grid, zero: float, scale: float) -> str:
    points = ((grid.x(at), zero - held * scale) for at, held in steps)
    return f"M{LEFT} {number(zero)}" + "".join(f"H{number(x)}V{number(y)}" for x, y in points)
