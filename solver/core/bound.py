"""A lower bound and the reason for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeloom.ir.units import duration


@dataclass(frozen=True, slots=True)
class Bound:
    """No valid schedule costs less than ``value``; ``words`` is the reason in one line.

    ``rank`` binds; None where it is no single one. ``numbers`` says the reason with its numbers,
    when asked: bounds are taken by the thousand.
    """

    value: float
    name: str
    words: str
    rank: int | None = None
    numbers: Callable[[], Sequence[str]] | None = field(default=None, compare=False, repr=False)

    def explained(self) -> tuple[str, ...]:
        return (self.words,) if self.numbers is None else tuple(self.numbers())


def starts_later(lag: float) -> list[str]:
    """A line on a rank whose first op comes ``lag`` after the first of all."""
    return [f"it starts at least {duration(lag)} after the first rank"] if lag > 0 else []
