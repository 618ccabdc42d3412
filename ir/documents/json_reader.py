"""Reads JSON files; if one cannot be read, InputError says why, and which command to use."""

from __future__ import annotations

import errno
import gzip
import json
import os
import sys
import zlib
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import InputError, show
from . import Document, named

_MADE_BY = {
    ("pipeloom.schedule", "pipeloom.profile"): ": optimize and build make one of a profile",
    ("pipeloom.program", "pipeloom.schedule"): ": compile makes one of a schedule",
    ("pipeloom.program", "pipeloom.profile"): ": optimize and then compile make one of a profile",
    ("pipeloom.certificate", "pipeloom.schedule"): ": optimize --certificate writes one",
}
"""By (expected, given format): a hint at the command that converts the given file."""

_TAKEN_BY = {
    "pipeloom.profile": ": optimize, build, compare and sweep take a profile",
    "pipeloom.schedule": ": compile, verify, show and export take a schedule",
    "pipeloom.program": ": verify, show and run take a program",
    "pipeloom.certificate": ": verify SCHEDULE --certificate FILE checks it",
    "pipeloom.lengths": ": pipeloom.pack takes lengths, in Python",
    "pipeloom.packing": ": it was removed in 0.2.0, pipeloom.pack returns schedules, in Python",
}
"""By format of a file given by mistake: a hint at the commands that take such a file."""


_UNMARKED = {
    "model_type": "a model's config.json: predict and plan take it",
    "spreads": "what plan has written: its profile.json and schedule.json are in the same folder",
}
"""Descriptions of known files without the key ``format``, by a key that identifies them."""


def read_document(given: Document, name: str) -> tuple[dict[str, Any], str]:
    """Return the JSON object in ``given``, and its name in messages.

    The name is that of the file, or ``name`` if ``given`` is not a file. Raises InputError if the
    file cannot be read or is not a JSON object, and TypeError if ``given`` is neither an object nor
    the name of a file.
    """
    if isinstance(given, Mapping):
        return dict(given), name
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"{name}: expected an object, its JSON or its file, got {given!r:.60}")
    return read_json(os.fspath(given)), named(given)


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object in the file ``path``, or on standard input for ``-``.

    Raises InputError if it cannot be read or is not a JSON object.
    """
    name = named(path)
    value = parse_json(read_text(path), name)
    if not isinstance(value, dict):
        raise InputError(f"{name}: expected a JSON object, got {show(value)}")
    return value


def read_text(path: str, expected: str = "JSON") -> str:
    """Return the text of the file ``path``, or of standard input for ``-``.

    Files compressed with gzip are decompressed. ``expected``: the kind of content, for messages.
    Raises InputError if the file cannot be read, is not UTF-8 text, or is empty.
    """
    name = named(path)
    try:
        text = _unpacked(_read_bytes(path)).decode("utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{name}: is cut off or damaged gzip; expected {expected}") from None
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
    if path != "-":
        return Path(path).read_bytes()
    if sys.stdin is None:
        raise OSError(errno.EBADF, "it is closed")
    return sys.stdin.buffer.read()


def _unpacked(data: bytes) -> bytes:
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def parse_json(text: str, name: str, *, others: bool = False) -> Any:
    """Return the JSON value in ``text``, of a file called ``name`` in messages.

    ``others``: whether another program has written the file. Raises InputError if ``text`` is not
    valid JSON or, unless ``others``, an object has a key twice.
    """
    twice: list[str] = []
    hook = None if others else partial(_unique, twice=twice)
    try:
        value = json.loads(text, object_pairs_hook=hook)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        end = " (the file ends early)" if cut else ""
        raise InputError(
            f"{name}: line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}{end}"
        ) from None
    except RecursionError:
        raise InputError(f"{name}: not valid JSON: nested too deeply") from None
    except ValueError:  # Python refuses integers of more than 4300 digits
        raise InputError(f"{name}: holds a whole number of thousands of digits") from None
    if twice:
        raise InputError(*(f"{name}: {key}: expected once, got it twice" for key in twice))
    return value


def _unique(pairs: list[tuple[str, Any]], twice: list[str]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice.extend(key for key, count in counts.items() if count > 1)
    return values


def format_hint(expected: str, given: object) -> str:
    """A hint for a file with the format ``given`` where ``expected`` is the right one.

    It names the command that converts one into the other, or the commands that take the given
    format. The hint is "" if there are none, or if ``given`` is not a string.
    """
    if not isinstance(given, str):
        return ""
    return _MADE_BY.get((expected, given)) or _TAKEN_BY.get(given, "")


def unmarked_hint(data: object) -> str:
    """A hint at what ``data``, the contents of a file without the key ``format``, is.

    For example, a model's config.json. The hint is "" if ``data`` is not an object, or has none of
    the keys by which a file is recognized.
    """
    keys = data if isinstance(data, Mapping) else ()
    return next((f" (this is {words})" for key, words in _UNMARKED.items() if key in keys), "")


def is_count(value: object) -> bool:
    """Whether ``value`` is an integer and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)
