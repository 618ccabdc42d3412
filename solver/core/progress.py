"""The progress that a running solve reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .methods import Method

FALLBACK = Method.ONE_AT_A_TIME
"""The method of the trivial schedule that every solve has, one microbatch after the other."""


def is_built(method: str | None) -> bool:
    """Whether there is a method, that is, a schedule, and it is not :data:`FALLBACK`."""
    return method not in {None, FALLBACK}


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a solve, ``seconds`` after its start.

    ``incumbent``: the cost of the best schedule; ``method``: the method that found it; ``gap``:
    (incumbent - bound) / incumbent. All three are None as long as there is no schedule. ``bound``:
    the lower bound on the cost.
    """

    seconds: float
    incumbent: float | None
    bound: float
    gap: float | None
    method: str | None

    @property
    def built(self) -> bool:
        """Whether there is a schedule that another method than :data:`FALLBACK` found."""
        return is_built(self.method)


Listener = Callable[[Progress], None]
