"""A chart with two linear axes, a grid, lines, marks, and a legend, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from .elements import FAINT, STYLE, document, element, label, line, ticks

LEFT, TOP, BOTTOM, ENTRY = 92.0, 84.0, 70.0, 22.0
Box: TypeAlias = tuple[float, float, float, float]
"""Coordinates of the left, top, right and bottom edges."""
Point: TypeAlias = tuple[float, float]


@dataclass
class Chart:
    """A chart under construction.

    ``title``, ``words``: the heading and the line below it. ``x_axis``, ``y_axis``: the smallest
    and the largest value of each axis. ``right``: the width of the space to the right of the plot.
    ``content``: the SVG elements so far. ``entries``: the number of lines in the legend so far.
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
        """The horizontal coordinate of a value; values beyond the axis are put at its right end."""
        left, _, right, _ = self.plot
        least, most = self.x_axis
        return left + (right - left) * min(1.0, (value - least) / (most - least))

    def y(self, value: float) -> float:
        _, top, _, bottom = self.plot
        least, most = self.y_axis
        return bottom - (bottom - top) * (value - least) / (most - least)

    def grid(self, name: str, shown: Callable[[float], str]) -> None:
        """Add horizontal lines at round values of the vertical axis, and the axis's name.

        ``shown``: formats a value.
        """
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
        """Add the labels of the horizontal axis, given as (value, text), and the axis's name."""
        left, _, right, bottom = self.plot
        middle = {"text_anchor": "middle"}
        for value, words in values:
            x = self.x(value)
            self.content.append(line("M", x, bottom, "v", 5, stroke=FAINT))
            self.content.append(label(words, x, bottom + 20, class_="muted", **middle))
        self.content.append(label(name, (left + right) / 2, bottom + 44, **middle))

    def entry(self, words: str, *marks: str) -> None:
        """Add a line to the legend: ``marks`` and their meaning ``words``.

        The marks are SVG elements drawn around the origin.
        """
        y = TOP + 8 + self.entries * ENTRY
        place = f"translate({self.width - self.right + 24:g} {y:g})"
        self.content.append(element("g", "".join([*marks, label(words, 16, 4)]), transform=place))
        self.entries += 1

    def svg(self) -> str:
        """The whole chart as the text of an SVG file."""
        head = [
            label(self.title, 24, 32, class_="title"),
            label(self.words, 24, 52, class_="muted"),
        ]
        height = max(self.height, TOP + 8 + self.entries * ENTRY)
        return document(self.width, height, STYLE, [*head, *self.content], self.title)
