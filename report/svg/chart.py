"""A chart with two linear axes: a grid, lines, marks with names, and a legend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

from .elements import FAINT, STYLE, document, element, label, line, ticks

LEFT, TOP, BOTTOM, ENTRY = 92.0, 84.0, 70.0, 22.0
CHARACTER, TALL = 6.6, 12.0
"""The width of a character and the height of a line at 12 px, sufficient for common fonts."""
Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom."""
Point: TypeAlias = tuple[float, float]


@dataclass
class Chart:
    """A chart under construction.

    ``x_axis``, ``y_axis``: the least and the largest value of each axis. ``right``: the space right
    of the plot. ``content``: the elements so far. ``taken``: the places that names must not cover.
    """

    title: str
    words: str
    x_axis: tuple[float, float]
    y_axis: tuple[float, float]
    width: float = 900.0
    height: float = 540.0
    right: float = 40.0
    content: list[str] = field(default_factory=list)
    taken: list[Box] = field(default_factory=list)
    entries: float = 0.0

    @property
    def plot(self) -> Box:
        return LEFT, TOP, self.width - self.right, self.height - BOTTOM

    def x(self, value: float) -> float:
        """The position of a value; larger values than the axis has are at its end."""
        left, _, right, _ = self.plot
        least, most = self.x_axis
        return left + (right - left) * min(1.0, (value - least) / (most - least))

    def y(self, value: float) -> float:
        _, top, _, bottom = self.plot
        least, most = self.y_axis
        return bottom - (bottom - top) * (value - least) / (most - least)

    def grid(self, name: str, shown: Callable[[float], str]) -> None:
        """Horizontal lines at round values of the vertical axis, and its name."""
        left, top, right, bottom = self.plot
        for value in ticks(*self.y_axis, 6):
            y = self.y(value)
            self.content.append(line("M", left, y, "H", right, stroke=FAINT))
            words = {"class_": "muted", "text_anchor": "end"}
            self.content.append(label(shown(value), left - 10, y + 4, **words))
        turned = f"rotate(-90 20 {(top + bottom) / 2:g})"
        middle = (top + bottom) / 2
        self.content.append(label(name, 22, middle, text_anchor="middle", transform=turned))

    def columns(self, name: str, values: Iterable[tuple[float, str]]) -> None:
        """The values of the horizontal axis with their labels, and its name."""
        left, _, right, bottom = self.plot
        middle = {"text_anchor": "middle"}
        for value, words in values:
            x = self.x(value)
            self.content.append(line("M", x, bottom, "v", 5, stroke=FAINT))
            self.content.append(label(words, x, bottom + 20, class_="muted", **middle))
        self.content.append(label(name, (left + right) / 2, bottom + 44, **middle))

    def dot(self, at: Point, tip: str = "", **attributes: Any) -> None:
        """Draw a circle at a position, which names do not cover."""
        x, y = at
        self.taken.append((x - 7, y - 7, x + 7, y + 7))
        self.content.append(element("circle", tip, cx=x, cy=y, **attributes))

    def keep_free(self, corners: Sequence[Point]) -> None:
        """Keep names away from a line of horizontal and vertical pieces."""
        for (a, b), (c, d) in pairwise(corners):
            self.taken.append((min(a, c) - 2, min(b, d) - 2, max(a, c) + 2, max(b, d) + 2))

    def name(self, text: str, at: Point, **attributes: Any) -> None:
        """Write ``text`` beside a position, if there is room."""
        box = self._free(CHARACTER * len(text), *at)
        if box is not None:
            self.taken.append(box)
            middle = (box[0] + box[2]) / 2
            self.content.append(label(text, middle, box[3] - 2, **attributes, class_="value"))

    def _free(self, wide: float, x: float, y: float) -> Box | None:
        """The free box of this width nearest to a position."""
        for far in (8.0, 14.0, 22.0, 32.0):
            above, below = y - far - TALL, y + far
            for left, top in (
                (x + far, above + 4),
                (x - far - wide, below - 4),
                (x - wide / 2, above),
                (x - wide / 2, below),
                (x + far, below - 4),
                (x - far - wide, above + 4),
            ):
                box = (left, top, left + wide, top + TALL)
                if _within(box, self.plot) and not any(_meet(box, each) for each in self.taken):
                    return box
        return None

    def entry(self, words: str, *marks: str) -> None:
        """A line of the legend: marks around the origin, and what they mean."""
        y = TOP + 8 + self.entries * ENTRY
        place = f"translate({self.width - self.right + 24:g} {y:g})"
        self.content.append(element("g", "".join([*marks, label(words, 16, 4)]), transform=place))
        self.entries += 1

    def svg(self) -> str:
        """The chart as an SVG file."""
        head = [
            label(self.title, 24, 32, class_="title"),
            label(self.words, 24, 52, class_="muted"),
        ]
        height = max(self.height, TOP + 8 + self.entries * ENTRY)
        return document(self.width, height, STYLE, [*head, *self.content], self.title)


def _meet(one: Box, other: Box) -> bool:
    across = one[0] < other[2] and other[0] < one[2]
    return across and one[1] < other[3] and other[1] < one[3]


def _within(box: Box, plot: Box) -> bool:
    across = plot[0] <= box[0] and box[2] <= plot[2]
    return across and plot[1] - 14 <= box[1] and box[3] <= plot[3]
