"""The timeline: one row per rank, time to the right, one or more schedules below each other.

::

    title                                             1. title and legend
    F forward  B input gradient  ...
    planned: V, 4.33 % bubble (optimal)               2. for each schedule: its name and figures,
    period 812 ms, makespan 846 ms, ...
      |-------------- period --------------|             the rank with the longest span,
    0 [F0][F1][F2]//////[B0][W0]...   7.94 |====|        a row per rank, its peak memory,
    1      [F0][F1]...                7.94 |====|
    8 - - - - - - - - - limit - - - - -                  the memory held over time,
    0 ___/~~~~~~~~~~~~~~~\\____                            if requested,
      0        200        400        600 ms              and the axis
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.schedule import Schedule, TransferKind
from pipeloom.ir.units import duration, memory_size, memory_unit

from ..bars import Bar, RankBars, fullest, last, memory_scale, peak_memory, rows, timed
from ..colours import AVERAGE, AVERAGED, NAMES, TRANSFERS, as_hex, colour, is_light
from ..summaries import caption, figures, setting
from .elements import FAINT, INK, MUTED, STYLE, document, element, label, line, number, path, ticks
from .elements import tooltip as titled

LEFT, RIGHT, MARGIN = 70.0, 150.0, 24.0
NAME, HEAD, AXIS, GAP = 48.0, 28.0, 30.0, 16.0
GAUGE = 56.0
THIN, COPY = 1.5, 4.0
"""The heights of a transfer and of a copy to or from the host, which are drawn below the rank's
row."""
ROOMY_WIDTH, MOST_WIDTH = 2400.0, 4000.0
"""Limits on the width of the plot: up to the first it grows until short bars are readable, up to
the second until typical bars are visible."""
CHART, SPACE, HEIGHT = 148.0, 36.0, 104.0
FULLEST, OTHER, LIMIT = "#2f4a6b", "#9db0c6", "#c2416b"
BARS = f"""
.name {{ font-size: 14px; font-weight: 600; }}
.n {{ pointer-events: none; }}
.n text {{ font-size: 10px; text-anchor: middle; font-variant-numeric: tabular-nums; }}
.bars rect {{ stroke: #fff; stroke-width: .6; }}
.bars rect:hover {{ stroke: {INK}; stroke-width: 1.5; }}
"""
BUBBLE = f"""<defs><pattern id="bubble" width="6" height="6" patternUnits="userSpaceOnUse"
patternTransform="rotate(45)"><rect width="6" height="6" fill="#f3f5f8"/>
<line y2="6" stroke="{FAINT}" stroke-width="1.6"/></pattern></defs>"""


@dataclass(frozen=True)
class Panel:
    """One schedule of a picture, its bars, and the user's name for it."""

    name: str | None
    schedule: Schedule
    rows: Sequence[RankBars]

    @property
    def bars(self) -> Iterator[Bar]:
        """The bars of all ops and copies, of all ranks."""
        return chain.from_iterable((*row.ops, *row.copies) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Grid:
    """The mapping of times and ranks to coordinates.

    ``width``: the width of the picture. ``end``: the end of the time axis in ms, which begins at 0.
    ``row``: the height of a rank's row. ``line``: the height of a thin line below the bars.
    ``memory``: the memory at full scale of a gauge.
    """

    width: float
    end: float
    row: float
    line: float
    memory: float

    @classmethod
    def of(cls, panels: Sequence[Panel], width: float) -> Grid:
        """A grid that is at least ``width`` wide, and wider if most bars would not be readable."""
        schedules = [panel.schedule for panel in panels]
        end = max(map(last, schedules))
        lengths = np.concatenate([took for each in schedules for took in each.known_timing.took])
        short, usual = np.quantile(lengths, [0.3, 0.5]).tolist() if len(lengths) else (0.0, 0.0)
        wanted = LEFT + RIGHT
        if short > 0:
            wanted += max(min(16.0 * end / short, ROOMY_WIDTH), min(6.0 * end / usual, MOST_WIDTH))
        ranks = max(schedule.problem.ranks for schedule in schedules)
        row = 30.0 if ranks <= 8 else 24.0 if ranks <= 16 else 16.0
        copied = any(row.copies for panel in panels for row in panel.rows)
        thin = COPY if copied else THIN
        scale = memory_scale(schedules)
        return cls(max(width, wanted), end, row + 2 * (thin - THIN), thin, scale)

    @property
    def right(self) -> float:
        return self.width - RIGHT

    @property
    def bar(self) -> float:
        """The height of a bar, which is less than that of a row."""
        return self.row - 2 * (self.line - THIN) - (5.0 if self.row >= 20 else 2.0)

    def x(self, time: float) -> float:
        return LEFT + (self.right - LEFT) * (time / self.end if self.end > 0 else 0.0)


def timeline_svg(
    panels: Sequence[tuple[str | None, Schedule]], *, memory: bool = False, width: float = 1200.0
) -> str:
    """The text of an SVG file that shows schedules below each other, with the same scales of time
    and memory.

    ``panels``: pairs of the user's name for a schedule, or None, and the schedule. Times are
    recorded (possibly measured) or, if there are none, simulated; each schedule starts at 0.
    ``memory``: also draw the memory held over time below each schedule. The picture becomes wider
    than ``width`` if bars would be too thin.
    """
    shown = [Panel(name, one, rows(one)) for name, one in ((n, timed(s)) for n, s in panels)]
    grid, several = Grid.of(shown, width), len(shown) > 1
    schedules = [panel.schedule for panel in shown]
    text = heading(schedules) if several else caption(shown[0].name, schedules[0])
    content = [BUBBLE, label(text, MARGIN, 32, class_="title")]
    if not several:
        content.append(label(figures(schedules[0]), MARGIN, 54, class_="muted"))
    legend, bottom = _legend(shown, 52 if several else 70, grid.width - MARGIN)
    content += legend
    top, alike = bottom + 36.0, len(set(map(setting, schedules))) == 1
    for panel in shown:
        if several:
            words = caption(panel.name, panel.schedule, with_setting=not alike)
            content.append(label(words, MARGIN, top + 10, class_="name"))
            content.append(label(figures(panel.schedule), MARGIN, top + 28, class_="muted"))
            top += NAME
        lines, top = _panel(panel, grid, top, memory=memory)
        content += lines
    return document(grid.width, top, STYLE + BARS, content, text)


def heading(schedules: Sequence[Schedule]) -> str:
    """The title of a picture of several schedules: their common setting.

    If settings differ, the title lists the names of the schedules' profiles.
    """
    settings = dict.fromkeys(map(setting, schedules))
    names = dict.fromkeys(each.problem.profile.name for each in schedules)
    return " and ".join(settings if len(settings) == 1 else filter(None, names)) or "schedules"


def _legend(panels: Sequence[Panel], y: float, right: float) -> tuple[list[str], float]:
    """The elements of the legend, and the vertical position of its last line.

    It explains only what occurs in the picture. ``y``: the position of its first line; ``right``:
    the position at which lines are wrapped.
    """
    lines, x = [], MARGIN
    for fills, words in _entries(panels):
        wide = 14 * len(fills) + 6 * bool(fills) + 6.6 * len(words)
        if x + wide > right:
            x, y = MARGIN, y + 20
        for i, fill in enumerate(fills):
            lines.append(element("rect", x=x + 14 * i, y=y, width=14, height=14, rx=2, fill=fill))
        x += wide
        lines.append(label(words, x - 6.6 * len(words), y + 11.5, class_="muted"))
        x += 20
    return lines, y


def _entries(panels: Sequence[Panel]) -> Iterator[tuple[list[str], str]]:
    """Yield each entry of the legend: the colors of its squares, and its text."""
    found = {bar.op.kind for panel in panels for bar in panel.bars if bar.op}
    several = any(
        len({bar.op.stage for bar in row.ops if bar.op}) > 1 for p in panels for row in p.rows
    )
    for kind in sorted(found):
        shades = (0.0, 1.0) if several else (0.0,)
        yield [as_hex(colour(kind, shade)) for shade in shades], f"{kind.name} {NAMES[kind]}"
    costs = sorted({panel.schedule.problem.objective.value for panel in panels})
    yield ["url(#bubble)"], f"bubble: idle time of the {' or '.join(costs)}"
    every = [row for panel in panels for row in panel.rows]
    sent = {bar.kind for row in every for bar in row.arrivals if bar.end > bar.start}
    for moved in filter(sent.__contains__, TransferKind):
        yield [as_hex(TRANSFERS[moved])], f"{moved.value} arriving"
    if any(any(panel.schedule.pairs) for panel in panels):
        yield [], "one above the other: at once"
    if any(row.averages for row in every):
        yield [as_hex(AVERAGE)], AVERAGED
    if several:
        yield [], "dark to light: a rank's first to last stage"


def _panel(panel: Panel, grid: Grid, top: float, *, memory: bool) -> tuple[list[str], float]:
    """The SVG elements of one schedule, and the vertical position below them.

    ``top``: the vertical position at which they begin. ``memory``: whether they include the memory
    over time.
    """
    first = top + HEAD
    bottom = first + len(panel.rows) * grid.row
    chart = list(_memory_chart(panel, grid, bottom)) if memory else []
    below = bottom + (CHART if memory else 0.0)
    words = ["peak memory"] if grid.memory >= 1000 else ["the profile's unit", "peak memory in"]
    lines = [*_axis(grid, first, below), *_cost(panel, grid, first - 14)]
    for i, word in enumerate(words):
        lines.append(label(word, grid.right + 16, first - 8 - 14 * i, class_="muted"))
    peaks, limits = peak_memory(panel.schedule), panel.schedule.problem.memory_limit
    for rank, row in enumerate(panel.rows):
        y = first + rank * grid.row
        lines += [*_row(row, grid, y), *_gauge(peaks[rank], limits[rank], grid, y)]
    return [*lines, *chart], below + AXIS + GAP


def _axis(grid: Grid, first: float, bottom: float) -> Iterator[str]:
    marks = ticks(0.0, grid.end, int((grid.right - LEFT) / 110))
    unit, size = ("s", 1e3) if grid.end >= 1e4 else ("ms", 1.0) if grid.end >= 1 else ("us", 1e-3)
    for mark in marks:
        x = grid.x(mark)
        words = f"{mark / size:g}" + (f" {unit}" if mark == marks[-1] else "")
        yield line("M", x, first, "V", bottom + 5, stroke=FAINT)
        yield label(words, x, bottom + 19, class_="muted", text_anchor="middle")


def _cost(panel: Panel, grid: Grid, y: float) -> list[str]:
    """The elements of a dimension line that shows the cost, with the cost as text in its middle.

    It is as long as the period, from the start of the rank with the longest span, or as long as the
    makespan.
    """
    timing, objective = panel.schedule.known_timing, panel.schedule.problem.objective
    longest = max(panel.rows, key=lambda row: timing.spans[row.rank])
    left, right = map(grid.x, longest.counted)
    words = f"{objective.value} {duration(timing.cost(objective))}"
    words += f" (rank {longest.rank})" if objective is Objective.PERIOD else ""
    middle, half = (left + right) / 2, 3.3 * len(words) + 6
    ends = path("M", left, y - 4, "v", 8, "M", right, y - 4, "v", 8)
    parts = path("M", left, y, "H", middle - half, "M", middle + half, y, "H", right)
    return [
        line(ends, parts, stroke=MUTED),
        label(words, middle, y + 4, class_="muted", text_anchor="middle"),
    ]


def _row(row: RankBars, grid: Grid, y: float) -> Iterator[str]:
    yield label(f"rank {row.rank}", LEFT - 10, y + grid.bar / 2 + 4, text_anchor="end")
    left, right = map(grid.x, row.counted)
    place = {"x": left, "y": y, "width": right - left, "height": grid.bar}
    yield element("rect", **place, fill="url(#bubble)")
    yield from _bars(row.ops, grid, y)
    below = y + grid.bar + 0.5
    for bar in row.arrivals:
        if bar.end > bar.start:
            yield _thin(bar, grid, below + 1.8 * (bar.kind is TransferKind.GRADIENT), THIN)
    for bar in row.copies:  # copies back are below copies to the host
        back = bar.op is not None and bar.op.kind is OpKind.L
        yield _thin(bar, grid, below + (grid.line + 0.3) * back, grid.line)
    for bar in row.averages:
        yield _thin(bar, grid, below, 3.3)


def _bars(bars: Sequence[Bar], grid: Grid, y: float) -> Iterator[str]:
    """Yield the bars of a row, one group per color, and the numbers of their microbatches.

    A number is left out where space does not permit it.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    numbers: dict[str, list[str]] = {"#fff": [], INK: []}
    for bar in bars:
        tall = grid.bar if bar.half is None else grid.bar / 2
        at = y + tall * (bar.half or 0)
        left, wide = grid.x(bar.start), grid.x(bar.end) - grid.x(bar.start)
        place = f'x="{number(left)}" y="{number(at)}" width="{number(wide)}"'
        groups[as_hex(bar.rgb)].append(
            f'<rect {place} height="{number(tall)}" rx="1.5">{_tip(bar)}</rect>'
        )
        assert bar.op is not None
        words = _number(str(bar.op.microbatch), left + wide / 2, at + tall / 2, wide, tall)
        numbers[INK if is_light(bar.rgb) else "#fff"] += words
    for fill, drawn in groups.items():
        yield element("g", "".join(drawn), class_="bars", fill=fill)
    for ink, drawn in numbers.items():
        if drawn:
            yield element("g", "".join(drawn), class_="n", fill=ink)


def _number(words: str, x: float, y: float, wide: float, tall: float) -> list[str]:
    """The number of a microbatch, centered in its bar; an empty list if it does not fit.

    It is rotated if the bar is narrow.
    """
    long, turned = 6.2 * len(words) + 1.6, None
    if wide < long:
        wide, tall, turned = tall, wide, f"rotate(-90 {number(x)} {number(y)})"
    fits = wide >= long and tall >= 8
    return [element("text", words, x=x, y=y + 3.6, transform=turned)] if fits else []


def _tip(bar: Bar) -> str:
    name = f"{bar.name}: " if bar.op else ""
    took = f"{bar.start:.6g} to {bar.end:.6g} ms ({duration(bar.end - bar.start)})"
    return titled(f"{name}{bar.words}\nrank {bar.rank}, {took}")


def _thin(bar: Bar, grid: Grid, y: float, tall: float) -> str:
    left = grid.x(bar.start)
    place = {"x": left, "y": y, "width": max(0.8, grid.x(bar.end) - left), "height": tall}
    return element("rect", _tip(bar), **place, fill=as_hex(bar.rgb))


def _gauge(peak: float, limit: float, grid: Grid, y: float) -> list[str]:
    """A horizontal gauge of peak memory relative to the limit, with the same scale in all
    panels."""
    per = GAUGE / grid.memory if grid.memory > 0 else 0.0
    limited, tall = math.isfinite(limit), min(8.0, grid.bar / 2)
    words = f"{memory_size(peak)} of {memory_size(limit)}" if limited else memory_size(peak)
    place = {"x": grid.right + 16, "y": y + grid.bar / 2 - tall / 2, "height": tall, "rx": 2}
    wide = limit * per if limited else GAUGE
    return [
        element("rect", **place, width=wide, fill="#e8ecf1"),
        element("rect", titled(words), **place, width=peak * per, fill="#5f7186"),
        label(memory_size(peak), grid.right + GAUGE + 22, y + grid.bar / 2 + 4, class_="muted"),
    ]


def _memory_chart(panel: Panel, grid: Grid, top: float) -> Iterator[str]:
    """Yield the chart of memory over time: the limits, and a line per rank.

    The line of the fullest rank is on top. All charts of a picture have the same scale. Memory
    sizes are the profile's, even if times are measured.
    """
    if grid.memory <= 0:
        yield label("no memory in the profile", LEFT, top + SPACE, class_="muted")
        return
    dark, zero, scale = fullest(panel.schedule), top + SPACE + HEIGHT, HEIGHT / grid.memory
    size, at = max(((held, -at) for at, held in panel.rows[dark].memory), default=(0.0, 0.0))
    peak = f"rank {dark}, {memory_size(size)} at {duration(-at)}"
    words = f"memory held{memory_unit(grid.memory)}; fullest (dark): {peak}"
    yield label(words, LEFT, top + SPACE - 14, class_="muted")
    for size in (0.0, grid.memory / 2, grid.memory):
        y = zero - size * scale
        yield label(memory_size(size), LEFT - 8, y + 4, class_="muted", text_anchor="end")
        yield line("M", LEFT, y, "H", grid.right, stroke=FAINT)
    for row in sorted(panel.rows, key=lambda row: row.rank == dark):
        places = ((grid.x(at), zero - held * scale) for at, held in row.memory)
        steps = [word for x, y in places for word in ("H", x, "V", y)]
        stroke, width = (FULLEST, 2.0) if row.rank == dark else (OTHER, 1.0)
        yield line("M", LEFT, zero, *steps, stroke=stroke, stroke_width=width)
    for limit in filter(math.isfinite, sorted(set(panel.schedule.problem.memory_limit))):
        y = zero - limit * scale
        yield line("M", LEFT, y, "H", grid.right, stroke=LIMIT, stroke_dasharray="6 4")
        yield label(f"limit {memory_size(limit)}", grid.right + 16, y + 4, fill=LIMIT)
