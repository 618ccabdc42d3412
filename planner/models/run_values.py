"""Values of a run by key, as they were given: absent, unknown and misspelt ones told apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.validation import misspelt

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
MOST = 2**40
"""Larger numbers are mistakes."""
_PRECISIONS = {"float8": "fp8", "fp8cs": "fp8", "fp8ds": "fp8", "float32": "fp32"} | {
    "bfloat16": "bf16",
    "float16": "fp16",
}


class RunValues:
    """Values by key, and the faults met while they are read."""

    def __init__(self, given: Mapping[str, Any], known: Collection[str]) -> None:
        self.faults: list[str] = []
        hints = dict(misspelt([str(key) for key in given], known))
        for key in given:
            if key not in known:
                meant = hints.get(str(key))
                hint = f"did you mean {meant}?" if meant else f"known: {', '.join(known)}"
                self.faults.append(f"{key}: unknown key; {hint}")
        self._stated = given
        self._values = {key: value for key, value in given.items() if not _is_unknown(value)}

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key, default)

    def stated(self, key: str) -> Any:
        """The value as it was given, though it may say that it is not known."""
        return self._stated.get(key)

    def raise_faults(self) -> None:
        if self.faults:
            raise InputError(*dict.fromkeys(self.faults))

    def wrong(self, key: str, expected: str, default: T) -> T:
        self.faults.append(f"{key}: expected {expected}, got {self._values[key]!r:.60}")
        return default

    def whole(self, key: str, default: int) -> int:
        if key not in self:
            return default
        value = self._values[key]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not 1 <= value <= MOST:
            return self.wrong(key, "a whole number >= 1", default)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key, default)
        return value if isinstance(value, bool) else self.wrong(key, "true or false", default)

    def choice(self, key: str, default: E) -> E:
        word = str(self._values.get(key, default)).lower().replace("-", "").replace("_", "")
        kind = type(default)
        try:
            return kind(_PRECISIONS.get(word, word))
        except ValueError:
            return self.wrong(key, f"one of {', '.join(kind)}", default)


def _is_unknown(value: object) -> bool:
    return value is None or (isinstance(value, str) and ("not stated" in value or value == "?"))
