"""Plans for a model on a cluster: tokens per second and GPU over memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .chart import Chart
from .elements import line, ticks, tooltip

BEST, OTHER, LIMIT = "#2f6cb3", "#8a97a6", "#c2416b"


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """A plan: memory in GiB of its fullest device, tokens per second and GPU."""

    name: str
    memory_gib: float
    tokens: float


@dataclass(frozen=True, slots=True)
class PlansPicture:
    """The data of the picture.

    ``points``: plans, the best one first. ``device_gib``: the memory of a device. ``most``: an
    upper bound on the tokens per second and GPU of all plans.
    """

    title: str
    points: Sequence[PlanPoint]
    device_gib: float
    most: float


def plans_svg(picture: PlansPicture) -> str:
    """An SVG file: plans as marks; the device's memory and the bound as lines, if in range."""
    points, most, device = picture.points, picture.most, picture.device_gib
    axes = _span([p.memory_gib for p in points], device), _span([p.tokens for p in points], most)
    bounded, full = most <= axes[1][1], device <= axes[0][1]
    words = (
        f"filled: the best; no plan is above {most:.5g} tokens/s/GPU{' (dashed)' * bounded}"
        f"; a device has {device:.3g} GiB{' (red)' * full}"
    )
    chart = Chart(picture.title, words, *axes)
    chart.grid("tokens/s/GPU", "{:g}".format)
    values = ((value, f"{value:g}") for value in ticks(*axes[0], 9))
    chart.columns("GiB on the fullest device", values)
    left, top, right, bottom = chart.plot
    if bounded:
        y = chart.y(most)
        chart.content.append(line("M", left, y, "H", right, stroke=OTHER, stroke_dasharray="5 4"))
        chart.keep_free([(left, y), (right, y)])
    if full:
        x = chart.x(device)
        chart.content.append(line("M", x, top, "V", bottom, stroke=LIMIT))
        chart.keep_free([(x, top), (x, bottom)])
    places = [(chart.x(point.memory_gib), chart.y(point.tokens)) for point in points]
    for i in reversed(range(len(points))):  # the best one is on top
        tip = f"{points[i].name}: {points[i].tokens:.5g}, {points[i].memory_gib:.1f} GiB"
        chart.dot(places[i], tooltip(tip), r=5, fill="#fff" if i else BEST, stroke=BEST)
    for point, place in zip(points, places, strict=True):
        chart.name(point.name, place)
    return chart.svg()


def _span(values: Sequence[float], limit: float) -> tuple[float, float]:
    """The ends of an axis for ``values`` and, if it is near, their upper ``limit``.

    It is near if its distance from the largest value is at most the range of the values, or a tenth
    of the limit.
    """
    least, most = min(values), max(values)
    if limit - most <= max(most - least, 0.1 * limit):
        most = max(most, limit)
    margin = 0.08 * (most - least) or 0.05 * most
    return max(0.0, least - margin), most + margin
