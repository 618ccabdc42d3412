"""Reading JSON so that every error of a file is reported at once, each with its key and value."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .errors import InputError

T = TypeVar("T")


def read_json(path: str) -> dict[str, Any]:
    """The JSON object in ``path``, or on standard input for ``-``. Raises InputError."""
    name = "standard input" if path == "-" else path
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except IsADirectoryError:
        raise InputError(f"{name}: is a directory; expected a JSON file") from None
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 text (byte {error.start}); expected JSON") from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        end = " (the file ends early)" if error.pos >= len(text.rstrip()) else ""
        raise InputError(
            f"{name}: line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}{end}"
        ) from None
    except RecursionError:
        raise InputError(f"{name}: not valid JSON: nested too deeply") from None
    if not isinstance(value, dict):
        raise InputError(f"{name}: expected a JSON object, got {show(value)}")
    return value


def show(value: object) -> str:
    """``value`` as JSON, cut to a readable length."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


class Reader:
    """Takes keys out of one JSON object; what is wrong goes into the shared list of errors.

    ``where`` names the object: a file, then the keys that lead to it.
    """

    def __init__(self, data: object, where: str, errors: list[str]) -> None:
        self.errors = errors
        self.where = where
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        if not isinstance(data, dict):
            self.fail(f"{where}: expected an object, got {show(data)}")

    def fail(self, message: str) -> None:
        self.errors.append(message)

    def wrong(self, key: str, value: object, expected: str) -> None:
        self.fail(f"{self.where}: {key}: expected {expected}, got {show(value)}")

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def get(self, key: str, expected: str, accept: Callable[[Any], bool], default: T) -> T:
        """The value of ``key`` where ``accept`` takes it, else ``default`` and an error."""
        if key not in self.data:
            self.fail(f"{self.where}: {key}: missing; expected {expected}")
            return default
        value = self.data[key]
        if not accept(value):
            self.wrong(key, value, expected)
            return default
        return value  # type: ignore[no-any-return]

    def number(self, key: str, default: float = 0.0) -> float:
        return float(self.get(key, "a finite number >= 0", is_amount, default))

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def count(self, key: str, least: int = 0) -> int:
        return self.get(
            key, f"a whole number >= {least}", lambda v: is_count(v) and v >= least, least
        )

    def text(self, key: str) -> str:
        return self.get(key, "a string", lambda v: isinstance(v, str), "")

    def items(self, key: str) -> list[Any]:
        return self.get(key, "a list", lambda v: isinstance(v, list), [])

    def child(self, key: str) -> Reader:
        value: dict[str, Any] = self.get(key, "an object", lambda v: isinstance(v, dict), {})
        return Reader(value, f"{self.where}: {key}", self.errors)

    def format(self, name: str, version: int = 1) -> None:
        """Checks the ``format`` and ``version`` that open every file of ours."""
        self.get("format", show(name), lambda v: v == name, name)
        self.get("version", str(version), lambda v: v == version, version)

    def finish(self) -> None:
        """Raises InputError where anything was wrong."""
        if self.errors:
            raise InputError(*self.errors)


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_amount(value: object) -> bool:
    """A finite number of at least 0."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )


def is_matrix(value: object, size: int) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == size
        and all(
            isinstance(row, list) and len(row) == size and all(map(is_amount, row)) for row in value
        )
    )
