"""The progress that a running solve reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .methods import Method

FALLBACK = Method.ONE_AT_A_TIME
"""The method of the trivial schedule that every solve has."""


def is_built(method: str | None) -> bool:
    """Whether there is a schedule, and its method is not :data:`FALLBACK`."""
    return method not in {None, FALLBACK}


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a solve, ``seconds`` after its start.

    ``incumbent``: the cost of the best schedule; ``method`` found it. ``gap``: (incumbent - bound)
    / incumbent. All three are None as long as there is no schedule.
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
