"""The small tree of errors that pipeloom raises on purpose."""

from __future__ import annotations

import errno
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

_RAW = frozenset({"Cc", "Cs", "Zl", "Zp"})
_RAW_TOO = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufffe\uffff")
"""Characters of these categories, and these, move, colour or reorder what a terminal shows, or
cannot stand in XML or UTF-8."""


def printable(text: str, keep: str = "") -> str:
    r"""``text`` with each control character but those to ``keep`` escaped: ``\x1b[31m``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _is_raw(c) else _escaped(c) for c in text)


def _is_raw(character: str) -> bool:
    return unicodedata.category(character) in _RAW or character in _RAW_TOO


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


class PipeloomError(Exception):
    """Base of every error raised on purpose; the command line prints it without a traceback."""

    exit_code = 2

    @property
    def lines(self) -> Sequence[str]:
        """The lines that the command line prints."""
        return (str(self),)


def did_you_mean(given: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """``; did you mean zb-h1?`` for ``ZB-H1``, or nothing if no known word is like it."""
    words = {word.lower(): word for word in known}
    near = get_close_matches(given.lower(), words, 1, likeness)
    return f"; did you mean {words[near[0]]}?" if near else ""


def in_words(error: BaseException) -> str:
    """The message of an error of ours; of another its kind before it: ``ValueError: bad``."""
    if isinstance(error, PipeloomError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def in_brief(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def of_rank(rank: int, text: str) -> str:
    """``rank 2: …``, said once."""
    return text if text.startswith(f"rank {rank}:") else f"rank {rank}: {text}"


class InputError(PipeloomError):
    """An input is wrong. ``errors`` holds one readable line for each thing that is."""

    def __init__(self, *errors: str) -> None:
        self.errors: tuple[str, ...] = errors
        super().__init__("\n".join(errors))

    @property
    def lines(self) -> Sequence[str]:
        return self.errors


class OutputError(PipeloomError):
    """Standard output does not take what is written; nobody is told where its reader has left."""

    exit_code = 1

    def __init__(self, error: OSError) -> None:
        self.reader_left = error.errno == errno.EPIPE
        super().__init__(f"standard output: cannot be written: {error.strerror}")

    @property
    def lines(self) -> Sequence[str]:
        return () if self.reader_left else (str(self),)


@contextmanager
def standard_output() -> Iterator[None]:
    """Raises OutputError where standard output does not take what is written meanwhile."""
    try:
        yield
    except OSError as error:
        raise OutputError(error) from None


class UnsupportedError(InputError):
    """A profile is sound but none for what is asked: a table of schedules has a row of that."""


class InfeasibleError(PipeloomError):
    """No schedule meets the memory limit, or with ``device`` none was found that the devices hold.

    ``smallest`` is the smallest feasible limit (in the profile's unit of memory), or what a device
    has to hold in the schedule found that exceeds its memory least; ``rank`` the rank that needs
    it. Both are None where several placements or schemes were compared, each with limits of its
    own. ``given``: the limit that was too small, where one was.
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
        """The key of ``smallest`` in the JSON of commands."""
        return "smallest_device_memory" if self.device else "smallest_memory_limit"

    def to_dict(self) -> dict[str, Any]:
        """The answer of ``--json`` where nothing is feasible."""
        if self.smallest is None:
            return {"status": "infeasible"}
        known = {self.smallest_key: self.smallest, "rank": self.rank}
        return {"status": "infeasible", "message": str(self), **known}


class InvalidScheduleError(PipeloomError):
    """A schedule or program breaks the rules; ``violations`` holds one line for each breach."""

    exit_code = 1

    def __init__(self, violations: Sequence[str]) -> None:
        self.violations: tuple[str, ...] = tuple(violations)
        super().__init__("\n".join(violations))

    @property
    def lines(self) -> Sequence[str]:
        return self.violations
