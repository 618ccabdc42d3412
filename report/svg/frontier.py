"""The frontier of a sweep as SVG: bubble rate as a function of the memory limit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, TypeAlias

from pipeloom.ir.units import memory_size, memory_unit

from ..summaries import percent
from .chart import Chart, Point
from .elements import element, label, line, path, ticks, tooltip

LINE, BOUND = "#2f6cb3", "#8a97a6"
CHARACTER = 6.6
"""The width of a character at 12 px that suffices for common fonts."""
_SHAPES = (
    "M0-6.5l6.5 6.5l-6.5 6.5l-6.5-6.5Z",
    "M-5.5-5.5h11v11h-11Z",
    "M0-6.5l6.5 12h-13Z",
    "M-6.5-5.5h13l-6.5 12Z",
)
"""A diamond, a square and two triangles, as path commands. Each is used in all colors before the
next."""
_COLOURS = ("#e39a2b", "#14846b", "#7656a4", "#c2416b", "#8c6d46", "#3f9fb5", "#6b8e23")
Mark: TypeAlias = tuple[str, float, float]
"""A family's name, its peak memory and its bubble rate."""


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """The bubble rate of the best schedule found for a memory limit (inf if unlimited).

    ``bound``: a lower bound on the bubble rate, or None.
    """

    limit: float
    bubble_rate: float
    bound: float | None
    optimal: bool


@dataclass(frozen=True, slots=True)
class Frontier:
    """The results of a sweep.

    ``points``: the optimized schedules. ``families``: one mark per schedule of a family. Marks with
    the same name look the same; dominated ones are not drawn (:attr:`shown`). ``scope``: the
    schedules that were searched and that the bounds cover, as text. ``elsewhere``: names of
    families outside of this scope, such as those with another placement.
    """

    title: str
    objective: str
    points: Sequence[FrontierPoint]
    families: Sequence[Mark]
    scope: str = "the same placement and passing"
    elsewhere: Collection[str] = ()

    @property
    def shown(self) -> list[Mark]:
        """The marks of families that no other family dominates in both peak memory and bubble rate.

        Families in the scope are compared only with each other, families outside of it with all.
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


def frontier_svg(frontier: Frontier) -> str:
    """The text of an SVG file with the results of a sweep.

    Optimized schedules are a line, lower bounds an area below it, and families marks.
    """
    points, families = sorted(frontier.points, key=lambda point: point.limit), frontier.shown
    words = f"filled: proven optimal; grey: ruled out for all schedules with {frontier.scope}"
    axes = _axes(points, families)
    chart = Chart(frontier.title, words, *axes, width=920.0, right=210.0)
    chart.grid(f"bubble rate of the {frontier.objective}", lambda rate: f"{rate * 100:g} %")
    limits = ((limit, memory_size(limit)) for limit in ticks(*axes[0], 9))
    chart.columns(f"memory limit of a rank{memory_unit(axes[0][1])}", limits)
    sample = line("M", -8, 0, "h", 16, stroke=LINE, stroke_width=2)
    chart.entry("best found", sample, element("circle", r=4, fill=LINE))
    _draw_bounds(chart, points)
    _draw_families(chart, families, frontier.elsewhere)
    _draw_points(chart, points)
    return chart.svg()


def _axes(points: Sequence[FrontierPoint], families: Sequence[Mark]) -> tuple[Point, Point]:
    limits = [p.limit for p in points if isfinite(p.limit)] + [limit for _, limit, _ in families]
    rates = [p.bubble_rate for p in points] + [rate for _, _, rate in families]
    low, high = min(limits, default=0.0), max(limits, default=1.0)
    space = (high - low) * 0.06 or max(abs(high), 1.0) * 0.1
    return (max(0.0, low - space), high + space), (0.0, max([*rates, 1e-3]) * 1.1)


def _draw_bounds(chart: Chart, points: Sequence[FrontierPoint]) -> None:
    """Draw the area below the bounds.

    The area has steps, as a bound is also valid for all smaller limits.
    """
    style: dict[str, Any] = {"stroke": BOUND, "stroke_width": 1.5, "stroke_dasharray": "5 4"}
    known: list[Point] = []
    best = 0.0
    for point in reversed(points):
        if point.bound is not None:
            best = max(best, point.bound)
            known.insert(0, (chart.x(point.limit), chart.y(best)))
    if known:
        left, _, _, bottom = chart.plot
        steps = ["M", left, known[0][1], *(word for x, y in known for word in ("V", y, "H", x))]
        area = path(*steps, "V", bottom, "H", left, "Z")
        chart.content += [element("path", d=area, fill="#eceff3"), line(*steps, **style)]
    chart.entry("lower bound", line("M", -8, 0, "h", 16, **style))


def _draw_steps(chart: Chart, places: Sequence[Point], *end: str | float, **style: Any) -> None:
    """Draw a line with steps through ``places``, since a schedule also fits in all larger limits.

    ``end``: further path commands.
    """
    if places:
        steps = [word for x, y in places[1:] for word in ("H", x, "V", y)]
        chart.content.append(line("M", *places[0], *steps, *end, **style))


def _draw_families(chart: Chart, families: Sequence[Mark], elsewhere: Collection[str]) -> None:
    """Draw the marks of families, and their legend.

    Marks are filled, or hollow for families that are ``elsewhere``, such as those with another
    placement.
    """
    names = list(dict.fromkeys(name for name, _, _ in families))
    looks = {name: _look(i, name in elsewhere) for i, name in enumerate(names)}
    for name, peak, rate in families:
        where = " (another placement)" * (name in elsewhere)
        at = chart.x(peak), chart.y(rate)
        words = f"{name}{where}: peak memory {memory_size(peak)}, bubble {percent(rate)}"
        place = f"translate({at[0]:.2f} {at[1]:.2f})"
        chart.content.append(element("path", tooltip(words), **looks[name], transform=place))
    for name in sorted(names, key=elsewhere.__contains__):
        chart.entry(name, element("path", **looks[name]))
    if not set(names).isdisjoint(elsewhere):
        chart.entry("hollow: another placement")


def _look(i: int, hollow: bool) -> dict[str, Any]:
    """The shape and the colors of the i-th family's mark, as attributes of a path element."""
    colour = _COLOURS[i % len(_COLOURS)]
    fill = {"fill": "#fff", "stroke": colour} if hollow else {"fill": colour, "stroke": "#fff"}
    return {"d": _SHAPES[i // len(_COLOURS) % len(_SHAPES)], **fill, "stroke_width": 1 + hollow}


def _draw_points(chart: Chart, points: Sequence[FrontierPoint]) -> None:
    """Draw the line of the best schedules, and their bubble rates where they change.

    A bubble rate is left out where space does not permit it.
    """
    places = [(chart.x(p.limit), chart.y(p.bubble_rate)) for p in points]
    right = chart.plot[2]
    _draw_steps(chart, places, "H", right, stroke=LINE, stroke_width=2)
    before, end = "", 0.0
    for point, (x, y) in zip(points, places, strict=True):
        tip = f"limit {memory_size(point.limit)}: bubble {percent(point.bubble_rate)}"
        fill = LINE if point.optimal else "#fff"
        look = {"fill": fill, "stroke": LINE, "stroke_width": 2}
        chart.content.append(element("circle", tooltip(tip), cx=x, cy=y, r=5, **look))
        text = percent(point.bubble_rate) + ", no limit" * (point.limit == inf)
        half = CHARACTER * len(text) / 2
        if text != before and x - half > end:
            chart.content.append(label(text, x, y - 10, fill=LINE, class_="value"))
            before, end = text, x + half
