"""A lower bound and the reason for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeloom.ir.units import duration


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound: no valid schedule costs less than ``value``.

    ``name``: that of the argument, as in reports. ``words``: the reason in one line. ``rank``: the
    rank that limits the cost, or None if it is not a single one. ``numbers``: a function that
    returns the reason with its numbers, in lines; it is called only on request, as bounds are
    computed by the thousand.
    """

    value: float
    name: str
    words: str
    rank: int | None = None
    numbers: Callable[[], Sequence[str]] | None = field(default=None, compare=False, repr=False)

    def explained(self) -> tuple[str, ...]:
        """The reason in lines, with its numbers if there are any."""
        return (self.words,) if self.numbers is None else tuple(self.numbers())


def starts_later(lag: float) -> list[str]:
    """An explanation in lines: a rank's first op starts ``lag`` after the first op of all ranks.

    An empty list if ``lag`` is 0.
    """
    return [f"it starts at least {duration(lag)} after the first rank"] if lag > 0 else []
