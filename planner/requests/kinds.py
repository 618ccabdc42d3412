"""Kinds of values that options have: how each is typed, and which values Python may give.

Imports nothing heavy: the command line reads its options with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.errors import InputError

from ..inputs.words import check_choice, check_whole, number_in


class Kind:
    """Any word but an empty one."""

    @property
    def choices(self) -> Sequence[object]:
        """The only values, where they are few."""
        return ()

    def read(self, text: str) -> Any:
        """The value that was typed. Raises InputError, which says what was expected."""
        if not text:
            raise InputError("expected a value, got ''")
        return text

    def check(self, name: str, value: Any) -> None:
        """Raises InputError, naming the field, for a value that it does not take."""


@dataclass(frozen=True, slots=True)
class Read(Kind):
    """What ``reader`` makes of a word; whoever uses the value checks it."""

    reader: Callable[[str], Any]

    def read(self, text: str) -> Any:
        return self.reader(text)


@dataclass(frozen=True, slots=True)
class Typed(Kind):
    """Typed as one of ``kind``; whoever uses the value checks it."""

    kind: Kind

    @property
    def choices(self) -> Sequence[object]:
        return self.kind.choices

    def read(self, text: str) -> Any:
        return self.kind.read(text)


@dataclass(frozen=True, slots=True)
class WholeNumber(Kind):
    """A whole number from ``least`` on; at most ``most`` may be typed."""

    least: int
    most: int | None = None

    def read(self, text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        if not self.least <= value <= (self.most or 2**31 - 1):
            words = f">= {self.least}" if self.most is None else f"from {self.least} to {self.most}"
            raise InputError(f"expected a whole number {words}, got {text!r}")
        return value

    def check(self, name: str, value: Any) -> None:
        check_whole(name, value, self.least)


@dataclass(frozen=True, slots=True)
class Positive(Kind):
    """A finite number above 0; ``words``: what it counts."""

    words: str = "a number"

    def read(self, text: str) -> float:
        value = number_in(text)
        if value is None or value <= 0:
            raise InputError(f"expected {self.words} > 0, got {text!r}")
        return value

    def check(self, name: str, value: Any) -> None:
        if not (isinstance(value, int | float) and value > 0):
            raise InputError(f"{name}: expected a number > 0, got {value!r}")


class Choice(Kind):
    """One of some words or numbers, or a member of an enum that has it as its value."""

    def __init__(self, *choices: object) -> None:
        self._choices = choices

    @property
    def choices(self) -> Sequence[object]:
        return self._choices

    def read(self, text: str) -> Any:
        return next((choice for choice in self.choices if str(choice) == text), text)

    def check(self, name: str, value: Any) -> None:
        check_choice(name, getattr(value, "value", value), *self.choices)


def number(text: str) -> float:
    """Any finite number."""
    if (value := number_in(text)) is None:
        raise InputError(f"expected a finite number, got {text!r}")
    return value


def stages(text: str) -> list[int]:
    """``0,3``"""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"expected stages, such as 0,3, got {text!r}")
    return list(map(int, parts))


MOST_MICROBATCHES = 100_000
"""More than anyone runs; arrays of that size would exhaust memory."""
ANY, TEXT, NUMBER = Kind(), Read(str), Read(number)
WHOLE, COUNT = WholeNumber(0), WholeNumber(1)
MICROBATCHES = Typed(WholeNumber(1, MOST_MICROBATCHES))
SECONDS, AMOUNT = Positive("seconds"), Positive()
