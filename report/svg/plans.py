"""Plans for a model on a cluster: tokens per second and GPU over memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .elements import FAINT, MUTED, STYLE, document, element, label, number, ticks
from .label_layout import Box, along, around, place

WIDTH, HEIGHT = 900.0, 540.0
LEFT, RIGHT, TOP, BOTTOM = 92.0, 40.0, 104.0, 70.0
BEST, OTHER, LIMIT = "#2f6cb3", "#8a97a6", "#c2416b"
Axis: TypeAlias = Callable[[float], float]


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
    left, right = _span([point.memory_gib for point in picture.points], picture.device_gib)
    low, top = _span([point.tokens for point in picture.points], picture.most)

    def x(memory: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (memory - left) / (right - left)

    def y(tokens: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (tokens - low) / (top - low)

    content = [label(picture.title, 24, 32, class_="title")]
    bounded, full = picture.most <= top, picture.device_gib <= right
    words = (
        f"filled: the best; no plan is above {picture.most:.5g} tokens/s/GPU{' (dashed)' * bounded}"
        f"; a device has {picture.device_gib:.3g} GiB{' (red)' * full}"
    )
    content.append(label(words, 24, 52, fill=MUTED))
    for value in _round_numbers(low, top, 6):
        path = f"M{LEFT} {number(y(value))}H{WIDTH - RIGHT}"
        content.append(element("path", d=path, stroke=FAINT, fill="none"))
        at = {"class_": "muted", "text_anchor": "end"}
        content.append(label(f"{value:g}", LEFT - 10, y(value) + 4, **at))
    at = {"class_": "muted", "text_anchor": "middle"}
    for value in _round_numbers(left, right, 9):
        content.append(label(f"{value:g}", x(value), HEIGHT - BOTTOM + 20, **at))
    middle = (LEFT + WIDTH - RIGHT) / 2
    content.append(label("GiB on the fullest device", middle, HEIGHT - 24, **at))
    content.append(label("tokens/s/GPU", 24, TOP - 18, fill=MUTED))
    bound, device = number(y(picture.most)), number(x(picture.device_gib))
    dashed = {"stroke": OTHER, "stroke_dasharray": "5 4", "fill": "none"}
    if bounded:
        content.append(element("path", d=f"M{LEFT} {bound}H{WIDTH - RIGHT}", **dashed))
    if full:
        content.append(element("path", d=f"M{device} {TOP}V{HEIGHT - BOTTOM}", stroke=LIMIT))
    return document(WIDTH, HEIGHT, STYLE, [*content, *_marks(picture, x, y)], picture.title)


def _marks(picture: PlansPicture, x: Axis, y: Axis) -> list[str]:
    """The plans, with their names if there is room; the best one is on top."""
    places = [(x(point.memory_gib), y(point.tokens)) for point in picture.points]
    taken = [around(*each, 7.0) for each in places]
    taken += along([(LEFT, y(picture.most)), (WIDTH - RIGHT, y(picture.most))], 1.0)
    taken += along([(x(picture.device_gib), each) for each in (TOP, HEIGHT - BOTTOM)], 1.0)
    bounds, marks = Box(LEFT, TOP - 14, WIDTH - RIGHT, HEIGHT - BOTTOM), list[str]()
    for i, (point, (cx, cy)) in enumerate(zip(picture.points, places, strict=True)):
        words = f"<title>{point.name}: {point.tokens:.5g}, {point.memory_gib:.1f} GiB</title>"
        fill = BEST if i == 0 else "#fff"
        marks.append(element("circle", words, cx=cx, cy=cy, r=5, fill=fill, stroke=BEST))
        box = place(point.name, cx, cy, taken, bounds)
        if box is not None:
            middle = (box.left + box.right) / 2
            marks.append(label(point.name, middle, box.bottom - 2, text_anchor="middle"))
    return marks[::-1]


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


def _round_numbers(least: float, most: float, about: int) -> list[float]:
    """The round numbers from ``least`` to ``most``, approximately ``about`` of them."""
    step = ticks(most - least, about)[1]
    return [i * step for i in range(math.ceil(least / step), math.floor(most / step) + 1)]
