"""Reading JSON so that every error of a file is reported at once, each with its key and value."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError

T = TypeVar("T")
LARGEST = 1e100
ALIKE = 0.75
"""Of keys without case and underscores: ``tf`` for t_f, ``memory_limits``; not t_b for t_f."""

_MADE_BY = {
    ("pipeloom.schedule", "pipeloom.profile"): ": optimize and build make one of a profile",
    ("pipeloom.program", "pipeloom.schedule"): ": compile makes one of a schedule",
    ("pipeloom.program", "pipeloom.profile"): ": optimize and then compile make one of a profile",
}
"""The command that leads from one format to another."""

_TAKEN_BY = {
    "pipeloom.profile": ": optimize, build, compare, analyze and sweep take a profile",
    "pipeloom.schedule": ": compile, verify, show and export take a schedule",
    "pipeloom.program": ": verify, show, run and tune take a program",
}
"""The commands for each format."""


def read_json(path: str) -> dict[str, Any]:
    """The JSON object in ``path``, or on standard input for ``-``. Raises InputError."""
    name = "standard input" if path == "-" else path
    value = parse_json(read_text(path), name)
    if not isinstance(value, dict):
        raise InputError(f"{name}: expected a JSON object, got {show(value)}")
    return value


def read_text(path: str, expected: str = "JSON") -> str:
    """The text of ``path``, or of standard input for ``-``. Raises InputError."""
    name = "standard input" if path == "-" else path
    try:
        text = _read_bytes(path).decode("utf-8-sig")
    except IsADirectoryError:
        raise InputError(f"{name}: is a directory; expected a file of {expected}") from None
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}: not UTF-8 text (byte {error.start}); expected {expected}"
        ) from None
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from None
    if not text.strip():
        raise InputError(f"{name}: is empty; expected {expected}")
    return text


def _read_bytes(path: str) -> bytes:
    return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()


def parse_json(text: str, name: str) -> Any:
    """The JSON value that ``text`` is; keys given twice are errors. Raises InputError."""
    twice: list[str] = []
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, twice))
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        end = " (the file ends early)" if cut else ""
        raise InputError(
            f"{name}: line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}{end}"
        ) from None
    except RecursionError:
        raise InputError(f"{name}: not valid JSON: nested too deeply") from None
    except ValueError:  # Python refuses whole numbers of more than 4300 digits
        raise InputError(f"{name}: holds a whole number of thousands of digits") from None
    if twice:
        raise InputError(*(f"{name}: {key}: expected once, got it twice" for key in twice))
    return value


def _unique(pairs: list[tuple[str, Any]], twice: list[str]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice.extend(key for key in values if keys.count(key) > 1)
    return values


def show(value: object) -> str:
    """``value`` as JSON, cut to a readable length."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def format_hint(expected: str, given: object) -> str:
    """Which command makes a file of the ``expected`` format of the ``given`` one, or takes the
    latter."""
    if not isinstance(given, str):
        return ""
    return _MADE_BY.get((expected, given)) or _TAKEN_BY.get(given, "")


class Reader:
    """Takes keys out of one JSON object; what is wrong goes into the shared list of errors.

    ``where`` names the object: a file, then the keys that lead to it. ``known`` are the keys that
    it may have; others are let pass, but taken for misspelt where one that is like them is missing.
    """

    def __init__(
        self, data: object, where: str, errors: list[str], known: Collection[str] = ()
    ) -> None:
        self.errors = errors
        self.where = where
        self.known = known
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        if not isinstance(data, dict):
            self.fail(f"{where}: expected an object, got {show(data)}")
            self.errors = []  # the keys that it lacks are no news

    def fail(self, message: str) -> None:
        self.errors.append(message)

    def wrong(self, key: str, value: object, expected: str) -> None:
        self.fail(f"{self.where}: {key}: expected {expected}, got {show(value)}")

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def get(self, key: str, expected: str, accept: Callable[[Any], bool], default: T) -> T:
        """The value of ``key`` where ``accept`` takes it, else ``default`` and an error."""
        if key not in self.data:
            meant = next((k for k, best in self.misspelt() if best == key), None)
            hint = f" ({meant}: unknown key; did you mean {key}?)" if meant else ""
            self.fail(f"{self.where}: {key}: missing; expected {expected}{hint}")
            return default
        value = self.data[key]
        if not accept(value):
            self.wrong(key, value, expected)
            return default
        return value  # type: ignore[no-any-return]

    def misspelt(self) -> Iterator[tuple[str, str]]:
        """Each key that is not known but much like one that is, with the known one."""
        unknown = [key for key in self.data if key not in self.known]
        plain = {_plain(key): key for key in self.known} if unknown else {}
        for key in unknown:
            for best in get_close_matches(_plain(key), plain, 1, ALIKE):
                yield key, plain[best]

    def number(self, key: str, default: float = 0.0) -> float:
        return float(self.get(key, "a finite number >= 0", is_amount, default))

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.has(key) else None

    def count(self, key: str, least: int = 0, most: int | None = None) -> int:
        expected = f"a whole number >= {least}" + ("" if most is None else f" and <= {most}")
        return self.get(
            key,
            expected,
            lambda v: is_count(v) and v >= least and (most is None or v <= most),
            least,
        )

    def optional_count(self, key: str) -> int | None:
        return self.count(key) if self.has(key) else None

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if self.has(key) else None

    def text(self, key: str) -> str:
        return self.get(key, "a string", lambda v: isinstance(v, str), "")

    def items(self, key: str) -> list[Any]:
        return self.get(key, "a list", lambda v: isinstance(v, list), [])

    def child(self, key: str, known: Collection[str] = ()) -> Reader:
        value = self.get(key, "an object", lambda v: isinstance(v, dict), None)
        where = f"{self.where}: {key}"
        return Reader({}, where, []) if value is None else Reader(value, where, self.errors, known)

    def format(self, name: str, version: int = 1) -> None:
        """Checks the ``format`` and ``version`` that open every file of ours.

        Raises InputError at once for another format: its other errors would mislead.
        """
        given = self.data.get("format", name)
        if given != name:
            hint = format_hint(name, given)
            raise InputError(
                f"{self.where}: format: expected {show(name)}, got {show(given)}{hint}"
            )
        self.get("format", show(name), lambda v: v == name, name)
        self.get("version", str(version), lambda v: is_count(v) and v == version, version)

    def finish(self) -> None:
        """Raises InputError where anything was wrong."""
        if self.errors:
            raise InputError(*self.errors)


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_amount(value: object) -> bool:
    """A finite number of at least 0, small enough that thousands of them can be summed."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= LARGEST  # False for NaN
    )


def is_matrix(value: object, size: int) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == size
        and all(
            isinstance(row, list) and len(row) == size and all(map(is_amount, row)) for row in value
        )
    )
