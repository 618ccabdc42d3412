""":class:`Words`: the given keys of a model or a run, whose values are validated when they are
read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from pipeloom.ir.documents.validation import misspelt
from pipeloom.ir.errors import InputError

T = TypeVar("T")
Choice = TypeVar("Choice", bound=StrEnum)
MOST, MOST_LAYERS = 2**40, 10_000
"""Maximum values of whole numbers and of numbers of layers; larger ones are recorded as faults."""


def bare(name: str) -> str:
    """The letters, digits and dots of ``name``, in lower case."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def find_name(name: str, known: Iterable[str]) -> str | None:
    """The element of ``known`` that differs from ``name`` only in case and in characters other than
    letters, digits and dots; None if there is no such element."""
    return {bare(each): each for each in known}.get(bare(name))


class Words:
    """The values that a user gave, by key. An absent value is replaced by its default, null is not.

    ``defaults``: these default values, by key. Every faulty value is recorded, and its default is
    used, until :meth:`raise_faults` raises InputError for all of them. A key may have several
    spellings; the first that is given counts.
    """

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.faults: list[str] = []
        self._given = given
        self._defaults = defaults or {}

    def value(self, *keys: str) -> Any:
        """The value of the first of ``keys`` that is given; None if none is given, or if it is
        null."""
        for values in (self._given, self._defaults):
            for key in keys:
                if key in values:
                    return values[key]
        return None

    def has(self, *keys: str) -> bool:
        return self.value(*keys) is not None

    def whole(
        self, *keys: str, default: int | None = None, least: int = 1, most: int = MOST
    ) -> int:
        """The value of a key as an integer from ``least`` to ``most``; ``keys`` are its spellings.

        If none of them is given, ``default`` is returned. If there is no default either, or if the
        value is not such an integer, a fault is recorded, and the result is ``default``, or
        ``least`` if there is no default.
        """
        value = self.value(*keys)
        if value is None:
            if default is None:
                self.faults.append(f"{keys[0]}: missing; expected a whole number >= {least}")
                return least
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not least <= value <= most:
            words = f" and <= {most}" if most < MOST else ""
            return self.wrong(keys, f"a whole number >= {least}{words}", default or least)
        return value

    def flag(self, *keys: str, default: bool = False) -> bool:
        value = self.value(*keys)
        if value is None:
            return default
        return value if isinstance(value, bool) else self.wrong(keys, "true or false", default)

    def number(self, key: str, least: float, most: float, expected: str) -> float | None:
        """The value of ``key`` as a float from ``least`` to ``most``, or None if it is not given.

        For any other value, a fault that names ``expected`` is recorded, and None is returned.
        """
        value = self.value(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not least <= value <= most:
            return self.wrong((key,), expected, None)
        return float(value)

    def choice(self, key: str, default: Choice) -> Choice:
        """The value of ``key`` as a member of the enum of ``default``; its case is ignored.

        Returns ``default`` if it is not given, or if it is invalid, which is recorded as a fault.
        """
        if not self.has(key):
            return default
        try:
            return type(default)(str(self.value(key)).lower())
        except ValueError:
            return self.wrong((key,), f"one of {', '.join(type(default))}", default)

    def wrong(self, keys: tuple[str, ...], expected: str, default: T) -> T:
        key = next((key for key in keys if key in self._given), keys[0])
        self.faults.append(f"{key}: expected {expected}, got {self.value(*keys)!r:.60}")
        return default

    def conflict(self, keys: tuple[str, ...], expected: str, default: T) -> T:
        """Record a fault for a value that contradicts others, and return ``default``.

        If there are faults already, none is recorded, as one of them may be the cause.
        """
        return default if self.faults else self.wrong(keys, expected, default)

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Record a fault for each given key that is not in ``known``.

        A similar known key is added as a hint.
        """
        hints = dict(misspelt(self._given, known))
        for key in self._given:
            if key not in known:
                hint = f"did you mean {hints[key]}?" if key in hints else "nothing like it is known"
                self.faults.append(f"{key}: unknown key; {hint}")

    def raise_faults(self) -> None:
        if self.faults:
            raise InputError(*dict.fromkeys(self.faults))
