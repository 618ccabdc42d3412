"""The progress of a solve, as it is told while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .methods import Method

FALLBACK = Method.ONE_AT_A_TIME
"""The method of the schedule that is always there."""


def is_built(method: str | None) -> bool:
    """Whether a schedule of this method is more than :data:`FALLBACK`."""
    return method not in {None, FALLBACK}


@dataclass(frozen=True, slots=True)
class Progress:
    """The state ``seconds`` after the start. ``gap`` is (incumbent - bound) / incumbent; ``method``
    found the incumbent. All three are None before the first schedule.
    """

    seconds: float
    incumbent: float | None
    bound: float
    gap: float | None
    method: str | None

    @property
    def built(self) -> bool:
        return is_built(self.method)


Listener = Callable[[Progress], None]
