"""What an exact backend hands back."""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.ir.model.schedule import Schedule


@dataclass(frozen=True, slots=True)
class ExactResult:
    """``schedule``: the best found, timed; the incumbent where nothing better was; None if neither.

    ``lower_bound``: no valid schedule costs less; ``inf`` where none is valid at all.
    ``complete``: the solver came to its end, so that more time would be in vain.
    """

    schedule: Schedule | None
    lower_bound: float
    complete: bool = False
