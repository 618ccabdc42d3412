"""How the values of options are read: numbers, memory, placements.

Each reader raises ArgumentTypeError with what was expected. Imports nothing heavy.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable

from pipeloom.ir.errors import InputError
from pipeloom.planner.inputs.placement_spec import PlacementSpec

# more microbatches than anyone runs; arrays of that size would exhaust memory
MOST_MICROBATCHES = 100_000
UNITS = {
    **{"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15},
    **{"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "PiB": 2.0**50},
}
"""Units of memory; kB, MB and so on are as k, M."""
MOST_PROCESSES = 1024


class Limit(float):
    """A memory limit that knows how it was typed."""

    words: str


def _whole_number(least: int, most: int, words: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = _integer(text)
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number {words}, got {text!r}")
        return value

    return read


def _positive(what: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = _number(text)
        if value is None or value <= 0:
            raise argparse.ArgumentTypeError(f"expected {what} > 0, got {text!r}")
        return value

    return read


count = _whole_number(1, MOST_MICROBATCHES, f"from 1 to {MOST_MICROBATCHES}")
at_least_one, whole = (_whole_number(n, 2**31 - 1, f">= {n}") for n in (1, 0))
workers = _whole_number(1, MOST_PROCESSES, f"from 1 to {MOST_PROCESSES}")
seconds, amount = _positive("seconds"), _positive("a number")


def slow(text: str) -> dict[int, float]:
    """``3:1.2,5:1.1``"""
    found: dict[int, float] = {}
    for part in text.split(","):
        first, _, rest = part.partition(":")
        rank, times = _integer(first), _number(rest)
        if rank is None or rank in found or times is None or times <= 0:
            raise argparse.ArgumentTypeError(
                f"expected RANK:X, each rank once and X > 0, such as 3:1.2, got {text!r}"
            )
        found[rank] = times
    return found


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def placement(text: str) -> PlacementSpec:
    try:
        return PlacementSpec.of(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("placement: ")) from None


def stages(text: str) -> list[int]:
    """``0,3``"""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"expected stages, such as 0,3, got {text!r}")
    return list(map(int, parts))


def number(text: str) -> float:
    value = _number(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"expected a finite number, got {text!r}")
    return value


def limit(text: str) -> Limit:
    """``8``, ``20e9``, ``20G``, ``19.5 GiB``, ``none``."""
    words = "".join(text.split())
    value = _limit(words)
    if value is None:
        raise argparse.ArgumentTypeError(
            "expected a finite number >= 0, such as 8, 20e9, 20G, 8MiB or 16GiB, or none, got "
            f"{text!r}"
        )
    given = Limit(value)
    given.words = words
    return given


def _limit(words: str) -> float | None:
    if words == "none":
        return math.inf
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", words)
    if match is None:
        return None
    unit = match[2]
    if not unit.endswith("iB"):
        unit = unit.removesuffix("B")
        if unit.endswith("B"):  # GiBB
            return None
    size, value = UNITS.get("k" if unit == "K" else unit), _number(match[1])
    if size is None or value is None or not math.isfinite(size * value):
        return None
    return size * value


def scale(text: str) -> list[int]:
    """``8,16,32``"""
    return [at_least_one(word) for word in text.split(",")]


def limits(text: str) -> list[Limit]:
    """``A,B,...`` without doubles, from small to large."""
    return sorted(set(map(limit, text.split(","))))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
