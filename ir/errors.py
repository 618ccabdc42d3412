"""The exceptions that pipeloom raises on purpose, and the texts of their messages."""

from __future__ import annotations

import errno
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

_RAW = frozenset({"Cc", "Cs", "Zl", "Zp"})
_RAW_TOO = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufffe\uffff")
"""Unicode categories (``_RAW``) and characters (``_RAW_TOO``) that are escaped in messages: they
move, color or reorder text in a terminal, or are not valid in XML or UTF-8."""


def printable(text: str, keep: str = "") -> str:
    r"""``text`` with control characters escaped, as in ``\x1b[31m``, except those in ``keep``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _is_raw(c) else _escaped(c) for c in text)


def _is_raw(character: str) -> bool:
    return unicodedata.category(character) in _RAW or character in _RAW_TOO


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def show(value: object) -> str:
    """``value`` as JSON text for messages, shortened to at most 60 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


class PipeloomError(Exception):
    """Base class of all errors raised on purpose; commands print them without a traceback."""

    exit_code = 2

    @property
    def lines(self) -> Sequence[str]:
        """The lines that the command line prints."""
        return (str(self),)


def did_you_mean(given: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """A hint with the word of ``known`` that is most similar to ``given``, or "" if none is.

    For example, ``; did you mean zb-h1?`` for ``ZB-H1``. ``likeness``: the minimum similarity, from
    0 to 1 (:func:`difflib.get_close_matches`).
    """
    words = {word.lower(): word for word in known}
    near = get_close_matches(given.lower(), words, 1, likeness)
    return f"; did you mean {words[near[0]]}?" if near else ""


def in_words(error: BaseException) -> str:
    """The message of an error; if it is no PipeloomError, with its type: ``ValueError: bad``."""
    if isinstance(error, PipeloomError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def in_brief(error: BaseException) -> str:
    """The type of an error and the first line of its message, as in ``ValueError: bad``."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def of_rank(rank: int, text: str) -> str:
    """``text`` with the prefix ``rank 2: ``, unless it already begins with this prefix."""
    return text if text.startswith(f"rank {rank}:") else f"rank {rank}: {text}"


_KEY = re.compile(r"(-*\w[-\w]*(?:\[\d+\])*): (?=.)")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of an input. As text: ``FILE: KEY: WORDS``, where unknown parts are left out.

    ``words``: the description of the fault. ``expected``: what was expected instead of ``value``,
    if known. ``key``: a command-line option, or the place of the value in its file, such as
    ``stages[1]: t_f``. ``file``: the name of that file. An unknown ``key`` or ``file`` is empty.
    """

    words: str
    expected: str | None = None
    key: str = ""
    file: str = ""
    value: Any = None

    @classmethod
    def of(cls, line: str) -> Fault:
        """The fault whose text is ``line``: ``KEY: WORDS``, or only words. It has no file."""
        found = _KEY.match(line)
        return cls(line) if found is None else cls(line[found.end() :], None, found[1])

    @classmethod
    def about(cls, key: str, expected: str, value: Any, file: str = "", hint: str = "") -> Fault:
        """The fault of a wrong ``value``, where ``expected`` describes the valid values.

        ``hint`` is appended to the words of the fault.
        """
        return cls(f"expected {expected}, got {show(value)}{hint}", expected, key, file, value)

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.file, self.key, self.words)))

    @property
    def name(self) -> str:
        """The first part of the key, such as ``tied`` for ``tied[0]``."""
        return re.split(r"[:\[]", self.key, maxsplit=1)[0]

    def renamed(self, names: Mapping[str, str]) -> Fault:
        """The fault with :attr:`name`, the first part of its key, replaced by ``names[name]``.

        If the fault is in a file, or ``names`` does not contain the name, the fault is unchanged.
        """
        if self.file or self.name not in names:
            return self
        *_, inside = self.key.partition(": ")
        return replace(self, key=": ".join(filter(None, (names[self.name], inside))))

    def within(self, file: str) -> Fault:
        """This fault in ``file``; the name of its former file becomes the first part of its key."""
        return replace(self, file=file, key=": ".join(filter(None, (self.file, self.key))))

    def to_dict(self) -> dict[str, str]:
        """The JSON object that ``--json`` prints: file, key, expected and given value, if known."""
        value = None if self.expected is None or self.value is None else show(self.value)
        found = {"file": self.file, "key": self.key, "expected": self.expected, "value": value}
        return {key: text for key, text in found.items() if text}


class InputError(PipeloomError):
    """An input is wrong. ``faults``: all faults of the input, each a :class:`Fault` or its text."""

    def __init__(self, *faults: str | Fault) -> None:
        self.faults = tuple(Fault.of(each) if isinstance(each, str) else each for each in faults)
        super().__init__("\n".join(self.errors))

    @property
    def errors(self) -> tuple[str, ...]:
        """The text of each fault, as one line."""
        return tuple(map(str, self.faults))

    @property
    def lines(self) -> Sequence[str]:
        return self.errors

    def changed(self, change: Callable[[Fault], Fault]) -> InputError:
        """A copy of the error with ``change`` applied to each fault."""
        return type(self)(*map(change, self.faults))

    def within(self, file: str, *options: str) -> InputError:
        """A copy of the error whose faults, except those of options, are in ``file``.

        A fault is one of an option if its :attr:`Fault.name` begins with ``--`` or is in
        ``options``.
        """

        def named(fault: Fault) -> Fault:
            is_option = fault.name in options or fault.name.startswith("--")
            return fault if is_option else fault.within(file)

        return self.changed(named)


class OutputError(PipeloomError):
    """Standard output cannot be written. Nothing is printed if its reader has closed the pipe."""

    exit_code = 1

    def __init__(self, error: OSError) -> None:
        self.reader_left = error.errno == errno.EPIPE
        super().__init__(f"standard output: cannot be written: {error.strerror}")

    @property
    def lines(self) -> Sequence[str]:
        return () if self.reader_left else (str(self),)


@contextmanager
def standard_output() -> Iterator[None]:
    """Context manager: writing to standard output raises OutputError instead of OSError."""
    try:
        yield
    except OSError as error:
        raise OutputError(error) from None


class UnsupportedError(InputError):
    """The profile is valid, but cannot be used for this request.

    The command ``compare`` shows the message in the row of its table, and continues.
    """


class InfeasibleError(PipeloomError):
    """No schedule fits in the memory limit, or none was found that fits in the devices' memory.

    ``device``: whether the limit is the devices' memory. ``smallest``: the smallest feasible limit,
    in the profile's unit of memory; with ``device``, the device memory that is needed by the
    schedule that exceeds the limit least among all that were found. ``rank``: the rank that needs
    this memory. Both are None if several placements or schemes with different limits were compared.
    ``given``: the limit that was too small, if there is a single one.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        smallest: float | None = None,
        rank: int | None = None,
        device: bool = False,
        given: float | None = None,
    ) -> None:
        self.smallest = smallest
        self.given = given
        self.rank = rank
        self.device = device
        super().__init__(message)

    @property
    def smallest_key(self) -> str:
        """The key under which commands print ``smallest`` as JSON."""
        return "smallest_device_memory" if self.device else "smallest_memory_limit"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object that ``--json`` prints.

        It has the keys ``status`` and ``message`` and, if ``smallest`` is known, also
        :attr:`smallest_key` and ``rank``.
        """
        if self.smallest is None:
            return {"status": "infeasible", "message": str(self)}
        known = {self.smallest_key: self.smallest, "rank": self.rank}
        return {"status": "infeasible", "message": str(self), **known}


class InvalidScheduleError(PipeloomError):
    """A schedule or program is not valid; ``violations`` has one line per violation."""

    exit_code = 1

    def __init__(self, violations: Sequence[str]) -> None:
        self.violations: tuple[str, ...] = tuple(violations)
        super().__init__("\n".join(violations))

    @property
    def lines(self) -> Sequence[str]:
        return self.violations
