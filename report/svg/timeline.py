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

from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.schedule import Schedule, Transfer, TransferKind
from pipeloom.ir.units import duration, memory_size

from ..bars import (
    OpBar,
    averages,
    bars,
    copies,
    counted,
    kinds,
    last,
    memory_scale,
    peak_memory,
    timed,
)  # fmt: skip
from ..colours import AVERAGE, AVERAGED, NAMES, as_hex, colour, is_light
from ..summaries import caption, figures, setting
from .elements import FAINT, INK, MUTED, document, element, label, number, ticks
from .grid import LEFT, LINE, MARGIN, RIGHT, Grid
from .memory import MEMORY_CHART, memory_chart

NAME, HEAD, AXIS, GAP = 48.0, 28.0, 30.0, 16.0
MEMORY_BAR = 56.0
COPY = 4.0  # the height of a copy to or from the host, below a row
# the largest widths of the plot that make bars readable, and visible
ROOMY_WIDTH, MOST_WIDTH = 2400.0, 4000.0

_TRANSFER = {TransferKind.WEIGHT: "#5b6b7f", TransferKind.GRADIENT: "#c2416b"}

STYLE = f"""
text {{ font-size: 12px; }}
.title {{ font-size: 17px; font-weight: 600; }}
.name {{ font-size: 14px; font-weight: 600; }}
.muted {{ fill: {MUTED}; }}
.n {{ pointer-events: none; }}
.n text {{ font-size: 10px; text-anchor: middle; font-variant-numeric: tabular-nums; }}
.bars rect {{ stroke: #fff; stroke-width: .6; }}
.bars rect:hover {{ stroke: {INK}; stroke-width: 1.5; }}
"""

BUBBLE = element(
    "defs",
    element(
        "pattern",
        element("rect", width=6, height=6, fill="#f3f5f8")
        + element("line", y2=6, stroke="#d9dfe7", stroke_width=1.6),
        id="bubble",
        width=6,
        height=6,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    ),
)


def timeline_svg(
    panels: Sequence[tuple[str | None, Schedule]], *, memory: bool = False, width: float = 1200.0
) -> str:
    """An SVG file that shows schedules below each other, with the same scales of time and memory.

    ``panels``: schedules with the user's names for them. Times are recorded (possibly measured) or,
    if there are none, simulated; each schedule starts at 0. ``memory``: draw the memory held over
    time below each schedule. The picture becomes wider than ``width`` if bars would be too thin.
    """
    shown = [(name, timed(schedule)) for name, schedule in panels]
    schedules = [schedule for _, schedule in shown]
    grid = _grid(schedules, width)
    several = len(shown) > 1
    text = heading(schedules) if several else caption(*shown[0])
    content = [BUBBLE, label(text, MARGIN, 32, class_="title")]
    if not several:
        content.append(label(figures(schedules[0]), MARGIN, 54, class_="muted"))
    legend, bottom = _legend(schedules, 52 if several else 70, grid.width - MARGIN)
    content += legend
    top, alike = bottom + 36.0, len(set(map(setting, schedules))) == 1
    for name, schedule in shown:
        if several:
            words = caption(name, schedule, with_setting=not alike)
            content.append(label(words, MARGIN, top + 10, class_="name"))
            content.append(label(figures(schedule), MARGIN, top + 28, class_="muted"))
            top += NAME
        lines, top = _panel(schedule, grid, top, memory=memory)
        content += lines
    return document(grid.width, top, STYLE, content, text)


def heading(schedules: Sequence[Schedule]) -> str:
    """The setting that all schedules share, or the names of their profiles if settings differ."""
    settings = dict.fromkeys(map(setting, schedules))
    names = dict.fromkeys(each.problem.profile.name for each in schedules)
    return " and ".join(settings if len(settings) == 1 else filter(None, names)) or "schedules"


def _grid(schedules: Sequence[Schedule], width: float) -> Grid:
    end = max(map(last, schedules))
    lengths = np.concatenate(
        [took for schedule in schedules for took in schedule.known_timing.took]
    )
    short, usual = np.quantile(lengths, [0.3, 0.5]).tolist() if len(lengths) else (0.0, 0.0)
    wanted = LEFT + RIGHT
    if short > 0:
        wanted += max(min(16.0 * end / short, ROOMY_WIDTH), min(6.0 * end / usual, MOST_WIDTH))
    ranks = max(schedule.problem.ranks for schedule in schedules)
    row = 30.0 if ranks <= 8 else 24.0 if ranks <= 16 else 16.0
    copied = any(kind.copies for schedule in schedules for kind in kinds(schedule))
    line = COPY if copied else LINE
    size = row + 2 * (line - LINE)
    return Grid(max(width, wanted), end, size, line, memory_scale(schedules))


def _legend(schedules: Sequence[Schedule], y: float, right: float) -> tuple[list[str], float]:
    """The legend of what occurs in the picture, and the position of its last line."""
    lines, x = [], MARGIN
    several = any(bar.shade > 0 for schedule in schedules for bar in bars(schedule, 0))

    def entry(fills: Sequence[str], words: str) -> None:
        nonlocal x, y
        if x + 14 * len(fills) + 6 + 6.6 * len(words) > right:
            x, y = MARGIN, y + 20
        for fill in fills:
            lines.append(element("rect", x=x, y=y, width=14, height=14, rx=2, fill=fill))
            x += 14
        x += 6 if fills else 0
        lines.append(label(words, x, y + 11.5, class_="muted"))
        x += 6.6 * len(words) + 20

    for kind in sorted({kind for schedule in schedules for kind in kinds(schedule)}):
        shades = (0.0, 1.0) if several else (0.0,)
        entry([as_hex(colour(kind, shade)) for shade in shades], f"{kind.name} {NAMES[kind]}")
    costs = sorted({schedule.problem.objective.value for schedule in schedules})
    entry(["url(#bubble)"], f"bubble: idle time of the {' or '.join(costs)}")
    sent = {t.kind for s in schedules for t, (start, end) in _transfers_of(s) if end > start}
    for moved in filter(sent.__contains__, _TRANSFER):
        entry([_TRANSFER[moved]], f"{moved.value} arriving")
    if any(any(schedule.pairs) for schedule in schedules):
        entry([], "one above the other: at once")
    if any(schedule.known_timing.averages for schedule in schedules):
        entry([as_hex(AVERAGE)], AVERAGED)
    if several:
        entry([], "dark to light: a rank's first to last stage")
    return lines, y


def _panel(schedule: Schedule, grid: Grid, top: float, *, memory: bool) -> tuple[list[str], float]:
    """The elements of one schedule, and the position below them."""
    rows = top + HEAD
    bottom = rows + schedule.problem.ranks * grid.row
    chart = memory_chart(schedule, grid, bottom) if memory else []
    below = bottom + (MEMORY_CHART if memory else 0.0)
    words = ["peak memory"] if grid.memory >= 1000 else ["peak memory in", "the profile's unit"]
    lines = [
        *_axis(grid, rows, below),
        *_cost(schedule, grid, rows - 14),
        *(
            label(word, grid.right + 16, rows - 8 - 14 * i, class_="muted")
            for i, word in enumerate(reversed(words))
        ),
    ]
    for rank in range(schedule.problem.ranks):
        lines += _row(schedule, rank, grid, rows + rank * grid.row)
    return [*lines, *chart], below + AXIS + GAP


def _axis(grid: Grid, rows: float, bottom: float) -> list[str]:
    marks = ticks(grid.end, int((grid.right - LEFT) / 110))
    unit, size = ("s", 1e3) if grid.end >= 1e4 else ("ms", 1.0) if grid.end >= 1 else ("us", 1e-3)
    lines = [
        element(
            "path",
            d="".join(f"M{number(grid.x(t))} {number(rows)}V{number(bottom + 5)}" for t in marks),
            stroke=FAINT,
            fill="none",
        )
    ]
    for mark in marks:
        words = f"{mark / size:g}" + (f" {unit}" if mark == marks[-1] else "")
        lines.append(label(words, grid.x(mark), bottom + 19, class_="muted", text_anchor="middle"))
    return lines


def _cost(schedule: Schedule, grid: Grid, y: float) -> list[str]:
    """A dimension line: the period, over the rank with the longest span, or the makespan."""
    timing, objective = schedule.known_timing, schedule.problem.objective
    rank = max(range(schedule.problem.ranks), key=lambda r: timing.spans[r])
    left, right = map(grid.x, counted(schedule, rank))
    words = f"{objective.value} {duration(timing.cost(objective))}"
    words += f" (rank {rank})" if objective is Objective.PERIOD else ""
    middle, half = (left + right) / 2, 3.3 * len(words) + 6
    path = (
        f"M{number(left)} {number(y - 4)}v8M{number(right)} {number(y - 4)}v8M{number(left)} "
        f"{number(y)}H{number(middle - half)}M{number(middle + half)} {number(y)}H{number(right)}"
    )
    return [
        element("path", d=path, stroke=MUTED, fill="none"),
        label(words, middle, y + 4, class_="muted", text_anchor="middle"),
    ]


def _row(schedule: Schedule, rank: int, grid: Grid, y: float) -> list[str]:
    height = grid.bar_height()
    shown = list(bars(schedule, rank))
    lines = [label(f"rank {rank}", LEFT - 10, y + height / 2 + 4, text_anchor="end")]
    left, right = map(grid.x, counted(schedule, rank))
    hatch = {"fill": "url(#bubble)"}
    lines.append(element("rect", x=left, y=y, width=right - left, height=height, **hatch))
    lines += _bars(shown, grid, y, height)
    lines += _transfers(schedule, rank, grid, y + height + 0.5)
    lines += _copies(schedule, rank, grid, y + height + 0.5)
    lines += _averages(schedule, rank, grid, y + height + 0.5)
    return lines + _memory(schedule, rank, grid, y, height)


def _bars(shown: Sequence[OpBar], grid: Grid, y: float, height: float) -> list[str]:
    """The bars, in one group per colour, with the microbatch's number if there is room."""
    groups: dict[str, list[str]] = defaultdict(list)
    numbers: dict[str, list[str]] = {"#fff": [], INK: []}
    for bar in shown:
        rgb = colour(bar.op.kind, bar.shade)
        left, right = grid.x(bar.start), grid.x(bar.end)
        tall = height if bar.half is None else height / 2
        at = y + tall * (bar.half or 0)
        groups[as_hex(rgb)].append(
            f'<rect x="{number(left)}" y="{number(at)}" width="{number(right - left)}" '
            f'height="{number(tall)}" rx="1.5">{_tooltip(bar)}</rect>'
        )
        middle = (left + right) / 2, at + tall / 2
        if words := _number(str(bar.op.microbatch), *middle, right - left, tall):
            numbers[INK if is_light(rgb) else "#fff"].append(words)
    return [
        *(element("g", "".join(rects), class_="bars", fill=fill) for fill, rects in groups.items()),
        *(element("g", "".join(n), class_="n", fill=fill) for fill, n in numbers.items() if n),
    ]


def _number(words: str, x: float, y: float, wide: float, tall: float) -> str | None:
    """A microbatch's number centred in its bar, rotated if the bar is narrow; None without room."""
    long, turned = 6.2 * len(words) + 1.6, None
    if wide < long:
        wide, tall, turned = tall, wide, f"rotate(-90 {number(x)} {number(y)})"
    if wide < long or tall < 8:
        return None
    return element("text", words, x=x, y=y + 3.6, transform=turned)


def _tooltip(bar: OpBar) -> str:
    op = bar.op
    words = (
        f"{op}: {NAMES[op.kind]} of microbatch {op.microbatch} on stage {op.stage}\n"
        f"rank {bar.rank}, {bar.start:.6g} to {bar.end:.6g} ms ({duration(bar.end - bar.start)})"
    )
    return f"<title>{escape(words)}</title>"


def _copies(schedule: Schedule, rank: int, grid: Grid, y: float) -> Iterator[str]:
    """Copies to the host, and below them copies back, as thin bars below the rank's row."""
    for bar in copies(schedule, rank):
        at = y + (grid.line + 0.3 if bar.op.kind is OpKind.L else 0.0)
        fill = as_hex(colour(bar.op.kind, bar.shade))
        yield _thin(grid, (bar.start, bar.end), _tooltip(bar), y=at, height=grid.line, fill=fill)


def _averages(schedule: Schedule, rank: int, grid: Grid, y: float) -> Iterator[str]:
    """Averages over replicas, as thin lines below the rank's row."""
    for one in averages(schedule, rank):
        span, words = (one.start, one.end), f"average of stage {one.stage}"
        yield _thin(grid, span, _title(words, *span), y=y, height=3.3, fill=as_hex(AVERAGE))


def _transfers_of(schedule: Schedule) -> Iterator[tuple[Transfer, list[float]]]:
    """Each transfer with its start and end."""
    return zip(schedule.transfers, schedule.known_timing.transfers.tolist(), strict=False)


def _transfers(schedule: Schedule, rank: int, grid: Grid, y: float) -> Iterator[str]:
    """Transfers of weights and gradients to ``rank``, as thin lines below its row."""
    for transfer, (start, end) in _transfers_of(schedule):
        if transfer.target == rank and end > start:
            kind, at = transfer.kind, y + 1.8 * (transfer.kind is TransferKind.GRADIENT)
            words = f"{kind.value} of stage {transfer.stage} from rank {transfer.source}"
            title = _title(words, start, end)
            yield _thin(grid, (start, end), title, y=at, height=LINE, fill=_TRANSFER[kind])


def _title(words: str, start: float, end: float) -> str:
    return f"<title>{words}, {start:.6g} to {end:.6g} ms</title>"


def _thin(grid: Grid, span: tuple[float, float], title: str, **attributes: str | float) -> str:
    left, right = map(grid.x, span)
    return element("rect", title, x=left, width=max(0.8, right - left), **attributes)


def _memory(schedule: Schedule, rank: int, grid: Grid, y: float, height: float) -> list[str]:
    """A gauge: the peak relative to the limit, with the same scale in all panels."""
    peak, limit = peak_memory(schedule)[rank], schedule.problem.memory_limit[rank]
    limited = np.isfinite(limit)
    per = MEMORY_BAR / grid.memory if grid.memory > 0 else 0.0
    wide, held = (limit * per if limited else MEMORY_BAR), peak * per
    x, tall = grid.right + 16, min(8.0, height / 2)
    middle = y + height / 2 - tall / 2
    words = f"{memory_size(peak)} of {memory_size(limit)}" if limited else memory_size(peak)
    return [
        element("rect", x=x, y=middle, width=wide, height=tall, rx=2, fill="#e8ecf1"),
        element(
            "rect",
            f"<title>{words}</title>",
            x=x,
            y=middle,
            width=held,
            height=tall,
            rx=2,
            fill="#5f7186",
        ),
        label(memory_size(peak), x + MEMORY_BAR + 6, y + height / 2 + 4, class_="muted"),
    ]
