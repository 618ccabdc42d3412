"""Values of a run by key, as they were given: absent, unknown and misspelt ones told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from .words import Words

E = TypeVar("E", bound=StrEnum)
_PRECISIONS = {"float8": "fp8", "fp8cs": "fp8", "fp8ds": "fp8", "float32": "fp32"} | {
    "bfloat16": "bf16",
    "float16": "fp16",
}


class RunValues(Words):
    """Values by key, of which those that are said not to be known are absent."""

    def __init__(self, given: Mapping[str, Any], known: Sequence[str]) -> None:
        super().__init__(given, {})
        self.refuse_unknown(known, f"known: {', '.join(known)}")
        self._stated = given
        self._given = {key: value for key, value in given.items() if not _is_unknown(value)}

    def stated(self, key: str) -> Any:
        """The value as it was given, though it may say that it is not known."""
        return self._stated.get(key)

    def choice(self, key: str, default: E) -> E:
        word = str(self._given.get(key, default)).lower().replace("-", "").replace("_", "")
        kind = type(default)
        try:
            return kind(_PRECISIONS.get(word, word))
        except ValueError:
            return self.wrong((key,), f"one of {', '.join(kind)}", default)


def _is_unknown(value: object) -> bool:
    return value is None or (isinstance(value, str) and ("not stated" in value or value == "?"))
