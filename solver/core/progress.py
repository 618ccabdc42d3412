"""The progress that a running solve reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .methods import Method

FALLBACK = Method.ONE_AT_A_TIME
"""The method of the trivial schedule that every solve has, one microbatch after the other."""


def is_built(method: str | None) -> bool:
    """Whether ``method`` is the method of a schedule other than the trivial one.

    False for :data:`FALLBACK`, and for None, which means that no schedule is known.
    """
    return method not in {None, FALLBACK}


@dataclass(frozen=True, slots=True)
class Progress:
    """A report of a running solve, ``seconds`` after its start.

    ``bound``: the lower bound on the cost. ``incumbent``: the cost of the best schedule;
    ``method``: the method that found it; ``gap``: (incumbent - bound) / incumbent. These three are
    None before any schedule is found.
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
