"""The frontier of a sweep: bubble rate over memory limit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

from pipeloom.ir.units import memory_size, memory_unit

from ..summaries import percent
from .elements import FAINT, MUTED, STYLE, document, element, label, number, ticks
from .label_layout import Box, along, around, place

WIDTH, HEIGHT = 920.0, 540.0
LEFT, RIGHT, TOP, BOTTOM = 92.0, 210.0, 76.0, 70.0
LINE, BOUND = "#2f6cb3", "#8a97a6"
_SHAPES = (
    "M{x} {top}l6.5 6.5l-6.5 6.5l-6.5-6.5Z",
    "M{x} {top}m-5.5 1h11v11h-11Z",
    "M{x} {top}l6.5 12h-13Z",
    "M{x} {top}m-6.5 1h13l-6.5 12Z",
)
"""A diamond, a square and two triangles; each is used in all colours before the next."""
_PLACEMENT_COLOURS = ("#3f9fb5", "#14846b", "#e39a2b", "#7656a4", "#c2416b", "#8c6d46", "#6b8e23")
_FAMILY_COLOURS = ("#e39a2b", "#14846b", "#7656a4", "#c2416b", "#8c6d46", "#3f9fb5", "#6b8e23")


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """The best schedule for a memory limit (inf: unlimited).

    ``bound``: a lower bound of the bubble rate, or None.
    """

    limit: float
    bubble_rate: float
    bound: float | None
    optimal: bool


@dataclass(frozen=True, slots=True)
class Frontier:
    """The results of a sweep.

    ``points``: optimized schedules. ``families``: (name, peak memory, bubble rate); points with the
    same name have the same mark, and dominated ones are not drawn (:attr:`shown`). ``scope``: the
    schedules that were searched and that the bounds cover, as text. ``elsewhere``: names of
    families outside of this scope, such as those with another placement. ``placements``: for each
    placement, its points (limit, bubble rate) with ascending limits, one list per contiguous range
    of limits in which it was searched.
    """

    title: str
    objective: str
    points: Sequence[FrontierPoint]
    families: Sequence[tuple[str, float, float]]
    scope: str = "the same placement and passing"
    elsewhere: Collection[str] = ()
    placements: Mapping[str, Sequence[Sequence[tuple[float, float]]]] = field(default_factory=dict)

    @property
    def shown(self) -> list[tuple[str, float, float]]:
        """(name, memory, bubble rate) of each family that no other one dominates.

        Families with the same placement and passing as the optimizer are compared only with each
        other, the rest with all.
        """
        own = [one for one in self.families if one[0] not in self.elsewhere]
        best = {
            name
            for name, peak, rate in self.families
            if not any(
                p <= peak and r <= rate and (p, r) != (peak, rate)
                for _, p, r in (self.families if name in self.elsewhere else own)
            )
        }
        return [one for one in self.families if one[0] in best]


@dataclass(frozen=True, slots=True)
class _Axes:
    low: float
    high: float
    top: float

    def x(self, limit: float) -> float:
        """The position of a limit; no limit is at the right edge."""
        share = min(1.0, (limit - self.low) / (self.high - self.low))
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    def y(self, rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / self.top


def frontier_svg(frontier: Frontier) -> str:
    """An SVG file: optimized schedules as a line, lower bounds below it, families as marks."""
    points = sorted(frontier.points, key=lambda point: point.limit)
    families = frontier.shown
    axes = _axes(points, families)
    content = [
        label(frontier.title, 24, 32, class_="title"),
        label(
            f"filled: proven optimal; grey: ruled out for all schedules with {frontier.scope}",
            24,
            52,
            class_="muted",
        ),
        *_grid(axes, frontier.objective),
        *_bound(points, axes),
        *_placements(frontier.placements, axes),
        *_families(families, frontier.elsewhere, axes),
        *_line(points, axes),
        *_labels(points, families, axes),
    ]
    legend, bottom = _legend(frontier, families)
    return document(WIDTH, max(HEIGHT, bottom + 20), STYLE, [*content, *legend], frontier.title)


def _axes(points: Sequence[FrontierPoint], families: Sequence[tuple[str, float, float]]) -> _Axes:
    limits = [p.limit for p in points if isfinite(p.limit)] + [limit for _, limit, _ in families]
    rates = [p.bubble_rate for p in points] + [rate for _, _, rate in families]
    low, high = min(limits, default=0.0), max(limits, default=1.0)
    space = (high - low) * 0.06 or max(abs(high), 1.0) * 0.1
    return _Axes(max(0.0, low - space), high + space, max([*rates, 1e-3]) * 1.1)


def _grid(axes: _Axes, objective: str) -> list[str]:
    lines, bottom, right = [], HEIGHT - BOTTOM, WIDTH - RIGHT
    for rate in ticks(axes.top, 6):
        y = axes.y(rate)
        lines.append(element("path", d=f"M{LEFT} {number(y)}H{right}", stroke=FAINT, fill="none"))
        lines.append(
            label(f"{rate * 100:g} %", LEFT - 10, y + 4, class_="muted", text_anchor="end")
        )
    for limit in ticks(axes.high, 9):
        if limit >= axes.low:
            x = axes.x(limit)
            lines.append(element("path", d=f"M{number(x)} {bottom}v5", stroke=MUTED, fill="none"))
            lines.append(
                label(memory_size(limit), x, bottom + 20, class_="muted", text_anchor="middle")
            )
    words = f"memory limit of a rank{memory_unit(axes.high)}"
    lines.append(label(words, (LEFT + right) / 2, bottom + 44, text_anchor="middle"))
    middle = (TOP + bottom) / 2
    lines.append(
        label(
            f"bubble rate of the {objective}",
            22,
            middle,
            text_anchor="middle",
            transform=f"rotate(-90 20 {number(middle)})",
        )
    )
    return lines


def _bound(points: Sequence[FrontierPoint], axes: _Axes) -> list[str]:
    """The area below the bounds; a bound also holds for all smaller limits, so there are steps."""
    known: list[tuple[float, float]] = []
    best = 0.0
    for point in reversed(points):
        if point.bound is not None:
            best = max(best, point.bound)
            known.insert(0, (axes.x(point.limit), axes.y(best)))
    if not known:
        return []
    left, bottom = number(axes.x(axes.low)), number(HEIGHT - BOTTOM)
    steps = f"M{left} {number(known[0][1])}" + "".join(
        f"V{number(y)}H{number(x)}" for x, y in known
    )
    return [
        element("path", d=f"{steps}V{bottom}H{left}Z", fill="#eceff3"),
        element(
            "path", d=steps, stroke=BOUND, stroke_width=1.5, stroke_dasharray="5 4", fill="none"
        ),
    ]


def _placements(
    placements: Mapping[str, Sequence[Sequence[tuple[float, float]]]], axes: _Axes
) -> list[str]:
    """A thin line with small dots for each range of results, without points above the picture."""
    lines = []
    for i, runs in enumerate(placements.values()):
        for points in runs:
            places = [(axes.x(at), axes.y(rate)) for at, rate in points if rate <= axes.top]
            lines += _steps(places, 1.0, _colour(i))
            lines += [element("circle", cx=x, cy=y, r=2.5, fill=_colour(i)) for x, y in places]
    return lines


def _steps(
    places: Sequence[tuple[float, float]], width: float, colour: str, end: str = ""
) -> list[str]:
    """A line with steps, as a schedule also fits in all larger limits."""
    if not places:
        return []
    path = "".join(f"H{number(x)}V{number(y)}" for x, y in places[1:]) + end
    begin = f"M{number(places[0][0])} {number(places[0][1])}"
    return [element("path", d=begin + path, stroke=colour, stroke_width=width, fill="none")]


def _colour(i: int) -> str:
    return _PLACEMENT_COLOURS[i % len(_PLACEMENT_COLOURS)]


def _line(points: Sequence[FrontierPoint], axes: _Axes) -> list[str]:
    places = [(axes.x(p.limit), axes.y(p.bubble_rate)) for p in points]
    lines = _steps(places, 2.0, LINE, f"H{WIDTH - RIGHT}")
    for point, (x, y) in zip(points, places, strict=True):
        words = f"limit {memory_size(point.limit)}: bubble {percent(point.bubble_rate)}"
        title = f"<title>{words}</title>"
        fill = LINE if point.optimal else "#fff"
        lines.append(
            element("circle", title, cx=x, cy=y, r=5, fill=fill, stroke=LINE, stroke_width=2)
        )
    return lines


def _labels(
    points: Sequence[FrontierPoint], families: Sequence[tuple[str, float, float]], axes: _Axes
) -> list[str]:
    """The bubble rate at each point where it changes, if there is room."""
    places = [(axes.x(p.limit), axes.y(p.bubble_rate)) for p in points]
    corners = [(x, y) for p, (_, y) in enumerate(places) for x, _ in places[p : p + 2]]
    taken = [
        *along([*corners, *((WIDTH - RIGHT, y) for _, y in places[-1:])], 2.0),
        *(around(x, y, 7.0) for x, y in places),
        *(around(axes.x(peak), axes.y(rate), 7.5) for _, peak, rate in families),
    ]
    bounds = Box(LEFT, TOP - 14, WIDTH - RIGHT, HEIGHT - BOTTOM)
    lines, last = [], ""
    for point, (x, y) in zip(points, places, strict=True):
        text = percent(point.bubble_rate) + ", no limit" * (point.limit == inf)
        box = place(text, x, y, taken, bounds) if text != last else None
        last = text
        if box is not None:
            middle = (box.left + box.right) / 2
            lines.append(label(text, middle, box.bottom - 2, fill=LINE, class_="value"))
    return lines


def _families(
    families: Sequence[tuple[str, float, float]], elsewhere: Collection[str], axes: _Axes
) -> list[str]:
    lines, names = [], _names(families)
    for name, peak, rate in families:
        other = name in elsewhere
        where = " (another placement)" if other else ""
        words = (
            f"<title>{name}{where}: peak memory {memory_size(peak)}, bubble {percent(rate)}</title>"
        )
        x, y = axes.x(peak), axes.y(rate)
        lines.append(_mark(names.index(name), x, y, words, hollow=other))
    return lines


def _names(families: Sequence[tuple[str, float, float]]) -> list[str]:
    return list(dict.fromkeys(name for name, _, _ in families))


def _mark(i: int, x: float, y: float, content: str = "", *, hollow: bool = False) -> str:
    """The mark of the i-th family: its shape and colour."""
    shape = _SHAPES[i // len(_FAMILY_COLOURS) % len(_SHAPES)]
    path = shape.format(x=number(x), top=number(y - 6.5))
    colour = _FAMILY_COLOURS[i % len(_FAMILY_COLOURS)]
    if hollow:
        return element("path", content, d=path, fill="#fff", stroke=colour, stroke_width=2)
    return element("path", content, d=path, fill=colour, stroke="#fff", stroke_width=1)


def _legend(
    frontier: Frontier, families: Sequence[tuple[str, float, float]]
) -> tuple[list[str], float]:
    """The elements of the legend, and the position of its last line."""
    x, y = WIDTH - RIGHT + 24, TOP + 8
    lines = [
        element("path", d=f"M{x - 8} {y}h16", stroke=LINE, stroke_width=2, fill="none"),
        element("circle", cx=x, cy=y, r=4, fill=LINE),
        label("best found" if frontier.placements else "optimized", x + 16, y + 4),
        element(
            "path",
            d=f"M{x - 8} {y + 22}h16",
            stroke=BOUND,
            stroke_width=1.5,
            stroke_dasharray="5 4",
            fill="none",
        ),
        label("lower bound", x + 16, y + 26),
    ]
    at, other = y + 22, False
    for i, name in enumerate(frontier.placements):
        at += 22
        line = element("path", d=f"M{x - 8} {at}h16", stroke=_colour(i), fill="none")
        lines += [line, label(name, x + 16, at + 4)]
    names = _names(families)
    for name in sorted(names, key=lambda name: name in frontier.elsewhere):
        if name in frontier.elsewhere and not other:
            other, at = True, at + 22
            lines.append(label("another placement:", x - 8, at + 4, class_="muted"))
        at += 22
        lines += [_mark(names.index(name), x, at, hollow=other), label(name, x + 16, at + 4)]
    return lines, at
