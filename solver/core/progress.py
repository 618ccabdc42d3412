"""The progress of a solve, as it is told while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FALLBACK = "one-at-a-time"
"""The source of the schedule that is always there, one op after the other."""


def is_built(source: str | None) -> bool:
    """Whether a schedule of this source is more than :data:`FALLBACK`."""
    return source not in {None, FALLBACK}


@dataclass(frozen=True, slots=True)
class Progress:
    """The state ``seconds`` after the start. ``gap`` is (incumbent - bound) / incumbent; ``source``
    names the method that found the incumbent. All three are None before the first schedule.
    """

    seconds: float
    incumbent: float | None
    bound: float
    gap: float | None
    source: str | None

    @property
    def built(self) -> bool:
        return is_built(self.source)


Listener = Callable[[Progress], None]
