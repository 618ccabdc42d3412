"""What an exact backend hands back, and the loop that waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class ExactResult:
    """``schedule``: the best found, timed; the incumbent where nothing better was; None if neither.

    ``lower_bound``: no valid schedule costs less; ``inf`` where none is valid at all.
    """

    schedule: Schedule | None
    lower_bound: float
