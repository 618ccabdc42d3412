"""Positions in a timeline."""

from __future__ import annotations

from dataclasses import dataclass

LEFT, RIGHT, MARGIN = 70.0, 150.0, 24.0
LINE = 1.5  # the height of a transfer, below a row


@dataclass(frozen=True, slots=True)
class Grid:
    """Positions of time and ranks: ``end`` is the last time, ``row`` the height of a rank's row,
    ``line`` that of a thin line below it, ``memory`` what a whole gauge holds."""

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
