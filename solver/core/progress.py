"""The progress that a running solve reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .methods import Method

FALLBACK = Method.ONE_AT_A_TIME
"""The method of the trivial schedule that every solve has, one microbatch after the other."""


def is_built(method: str | None) -> bool:
    """Whether ``method`` is neither :data:`FALLBACK` nor None (no schedule known)."""
    return method not in {None, FALLBACK}


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a solve, ``seconds`` after its start.

    ``incumbent``: the cost of the best schedule; ``method``: the method that found it; ``gap``:
    (incumbent - bound) / incumbent. All three are None before any schedule is found. ``bound``: the
    lower bound on the cost.
    """

    seconds: float
    incumbent: float | None
    bound: float
    gap: float | None
    method: str | None

    @property
    def built(self) -> bool:
        """Whether a method other than :data:`FALLBACK` found the best schedule."""
        return is_built(self.method)


Listener = Callable[[Progress], None]
