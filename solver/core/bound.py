"""A lower bound and the reason for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeloom.ir.units import duration


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound: no valid schedule costs less than ``value``.

    ``name``: the name of the bound in reports. ``words``: the reason in one line. ``rank``: the
    rank that limits the cost, or None if no single rank does. ``numbers``: a function that returns
    the reason in several lines, with numbers; None if there are only ``words``. It is called only
    when these lines are shown, as thousands of bounds may be computed.
    """

    value: float
    name: str
    words: str
    rank: int | None = None
    numbers: Callable[[], Sequence[str]] | None = field(default=None, compare=False, repr=False)

    def explained(self) -> tuple[str, ...]:
        """The reason in lines: the result of ``numbers`` or, if that is None, ``words``."""
        return (self.words,) if self.numbers is None else tuple(self.numbers())


def starts_later(lag: float) -> list[str]:
    """Return a line of an explanation, as a list: a rank starts at least ``lag`` after the first.

    The first rank is the one that starts first. Returns an empty list if ``lag`` is 0.
    """
    return [f"it starts at least {duration(lag)} after the first rank"] if lag > 0 else []
