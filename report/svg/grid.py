"""The coordinates of a timeline."""

from __future__ import annotations

from dataclasses import dataclass

LEFT, RIGHT, MARGIN = 70.0, 150.0, 24.0
LINE = 1.5  # the height of a transfer, below a row


@dataclass(frozen=True, slots=True)
class Grid:
    """The mapping of times and ranks to coordinates.

    ``end``: the last time in ms. ``row``: the height of a rank's row. ``line``: the height of a
    thin line below it. ``memory``: the full scale of the memory gauges.
    """

    width: float
    end: float
    row: float
    line: float
    memory: float

    @property
    def right(self) -> float:
        return self.width - RIGHT

    def x(self, time: float) -> float:
        return LEFT + (self.right - LEFT) * (time / self.end if self.end > 0 else 0.0)

    def bar_height(self) -> float:
        return self.row - 2 * (self.line - LINE) - (5.0 if self.row >= 20 else 2.0)
