"""Arguments given as text, as on the command line: memory sizes, and slow ranks with their factors.

This module imports nothing heavy, since the command line parses its options with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeloom.ir.errors import InputError

if TYPE_CHECKING:
    from .problem_setup import ProfileSource

UNITS = {
    **{"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15},
    **{"ki": 2.0**10, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50},
}
"""Units of memory in bytes, without the B that may follow, and must follow an ``i``."""
LEAST_BYTES = 1000.0
"""If microbatches hold less memory than this in the profile's unit, this unit cannot be bytes."""


class MemorySize(float):
    """A memory size that also stores the text from which it was parsed (``words``)."""

    words: str

    @property
    def in_bytes(self) -> bool:
        """Whether the text has a unit, so that the size is in bytes."""
        return self.words[-1].isalpha() and math.isfinite(self)


def number_in(text: str) -> float | None:
    """Return ``text`` as a number; None if it is not a finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def size_in(text: str) -> MemorySize:
    """Parse a memory size such as ``8``, ``20e9``, ``20G``, ``19.5 GiB`` or ``none``, which is
    infinite. Raises InputError for other text."""
    words = "".join(text.split())
    value = _size(words)
    if value is None:
        raise InputError(
            "expected a finite number >= 0, such as 8, 20e9, 20G, 8MiB or 16GiB, or none, got "
            f"{text!r}"
        )
    found = MemorySize(value)
    found.words = words
    return found


def sizes_in(text: str) -> list[MemorySize]:
    """Parse memory sizes that are separated by commas or spaces. Returns them in ascending order
    without duplicates."""
    return sorted(set(map(size_in, re.split(r"(?:,\s*|\s+)(?=[0-9n])", text.strip(", ")))))


def _size(words: str) -> float | None:
    if words == "none":
        return math.inf
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([kKMGTP]i(?=B)|[kKMGTP]?)B?", words)
    value = None if match is None else number_in(match[1])
    if match is None or value is None:
        return None
    size = value * UNITS[match[2]]
    return size if math.isfinite(size) else None


def check_choice(name: str, value: object, *choices: object) -> None:
    """Raise InputError with the option's ``name`` if its value is not one of ``choices``."""
    if value not in choices:
        *others, last = map(str, choices)
        raise InputError(f"{name}: expected {', '.join(others)} or {last}, got {value!r}")


def check_whole(name: str, value: object, least: int = 0) -> None:
    """Raise InputError with the option's ``name`` if its value is not an integer >= ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        bound = f" >= {least}" if least else ""
        raise InputError(f"{name}: expected a whole number{bound}, got {value!r}")


def slow_in(text: str) -> dict[int, float]:
    """Parse the factors of slow ranks, such as ``3:1.2,5:1.1``, into a dict by rank. Raises
    InputError for other text."""
    found: dict[int, float] = {}
    for part in text.split(","):
        first, _, rest = part.partition(":")
        rank = int(first) if re.fullmatch(r"[0-9]{1,19}", first) else None
        times = number_in(rest)
        if rank is None or rank in found or times is None or times <= 0:
            raise InputError(
                f"expected RANK:X, each rank once and X > 0, such as 3:1.2, got {text!r}"
            )
        found[rank] = times
    return found


def slow_of(given: Mapping[int, float] | str | None) -> Mapping[int, float] | None:
    """Return the factor of each slow rank, from an argument ``slow``, which may be given as text;
    None if the argument is None. Raises InputError for invalid text."""
    try:
        return slow_in(given) if isinstance(given, str) else given
    except InputError as error:
        raise InputError(f"slow: {error}") from None


MOST_HELD = 1e9
"""A limit is taken to be in bytes if it has room for more microbatches than this."""


def memory_limit_of(
    given: float | str | None, source: ProfileSource | None = None, name: str = "memory_limit"
) -> float | None:
    """Return the memory limit that the user gave as a number or text; None if none was given.

    ``name``: the argument's name in messages. Raises InputError for an invalid limit, and for a
    limit in bytes if the unit of memory in the profile ``source`` is larger.
    """
    from pipeloom.ir.model.profile import check_limit

    if given is None:
        return None
    if isinstance(given, str):
        try:
            given = size_in(given)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    check_limit(given)
    if source is not None and math.isfinite(given):
        _check_unit(given, source, name)
    return given


def _check_unit(given: float, source: ProfileSource, name: str) -> None:
    """Raise InputError if the limit is in bytes, but the profile's unit of memory is larger."""
    most = max(stage.m_b for stage in source.pieces)
    if bytes_beside(most, given):
        raise InputError(
            f"{name}: expected a number in the profile's unit, of which a microbatch holds at most "
            f"{most:g}, got bytes"
        )


def bytes_beside(most: float, size: float) -> bool:
    """Return whether ``size`` is in bytes, judging by its unit or value, although the profile's
    unit of memory is larger than a byte.

    ``most``: the largest memory of a microbatch on a stage or layer, in the profile's unit.
    """
    in_bytes = isinstance(size, MemorySize) and size.in_bytes
    return 0 < most < LEAST_BYTES and (in_bytes or MOST_HELD * most < size < math.inf)
