"""Kinds of option values: how text is parsed, and which values are valid as arguments in Python.

This module imports nothing that loads slowly, since the command line parses its options with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipeloom.ir.errors import InputError

from ..inputs.words import check_choice, check_whole, number_in


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of option values.

    ``read``: parses text from the command line; raises InputError with what was expected.
    ``choices``: the only valid values, or empty if there are too many to list. ``check(name,
    value)``: validates a value given in Python, and raises InputError if it is invalid; None if the
    function that is called with the value validates it itself.
    """

    read: Callable[[str], Any]
    choices: Sequence[object] = ()
    check: Callable[[str, Any], None] | None = None


def typed(kind: Kind) -> Kind:
    """A copy of ``kind`` without ``check``.

    It is for arguments that, in calls from Python, the called function validates itself.
    """
    return replace(kind, check=None)


def whole(least: int, most: int | None = None) -> Kind:
    """The kind of an integer from ``least`` to ``most``; in Python, ``most`` is not enforced."""

    def read(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        if not least <= value <= (most or 2**31 - 1):
            words = f">= {least}" if most is None else f"from {least} to {most}"
            raise InputError(f"expected a whole number {words}, got {text!r}")
        return value

    return Kind(read, check=partial(check_whole, least=least))


def positive(words: str) -> Kind:
    """The kind of a finite number above 0. ``words``: its name or unit in messages: "seconds"."""

    def read(text: str) -> float:
        value = number_in(text)
        if value is None or value <= 0:
            raise InputError(f"expected {words} > 0, got {text!r}")
        return value

    return Kind(read, check=_check_positive)


def _check_positive(name: str, value: Any) -> None:
    if not (isinstance(value, int | float) and value > 0):
        raise InputError(f"{name}: expected a number > 0, got {value!r}")


def choice(*choices: object) -> Kind:
    """The kind of one of the given words or numbers. In Python, it may also be an enum member whose
    value is one of them."""

    def read(text: str) -> object:
        return next((each for each in choices if str(each) == text), text)

    def check(name: str, value: Any) -> None:
        check_choice(name, getattr(value, "value", value), *choices)

    return Kind(read, choices, check)


def _word(text: str) -> str:
    if not text:
        raise InputError("expected a value, got ''")
    return text


def _number(text: str) -> float:
    if (value := number_in(text)) is None:
        raise InputError(f"expected a finite number, got {text!r}")
    return value


def stages(text: str) -> list[int]:
    """Parse comma-separated stage numbers such as ``0,3``. Raises InputError for anything else."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(f"expected stages, such as 0,3, got {text!r}")
    return list(map(int, parts))


ANY, TEXT, NUMBER = Kind(_word), Kind(str), Kind(_number)
WHOLE, COUNT, MICROBATCHES = whole(0), whole(1), typed(whole(1, 100_000))
"""The number of microbatches is limited on the command line, since more would exhaust memory."""
SECONDS, AMOUNT = positive("seconds"), positive("a number")
