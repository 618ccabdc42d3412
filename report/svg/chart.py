"""A chart with two linear axes: a grid, lines, marks, and a legend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from .elements import FAINT, STYLE, document, element, label, line, ticks

LEFT, TOP, BOTTOM, ENTRY = 92.0, 84.0, 70.0, 22.0
Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom."""
Point: TypeAlias = tuple[float, float]


@dataclass
class Chart:
    """A chart under construction.

    ``x_axis``, ``y_axis``: the least and the largest value of each axis. ``right``: the space right
    of the plot. ``content``: the elements so far.
    """

    title: str
    words: str
    x_axis: tuple[float, float]
    y_axis: tuple[float, float]
    width: float = 900.0
    height: float = 540.0
    right: float = 40.0
    content: list[str] = field(default_factory=list)
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
