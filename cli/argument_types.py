"""How the values of options are read: numbers, memory, placements.

Each reader raises ArgumentTypeError with what was expected. Imports nothing heavy.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TypeVar

from pipeloom.ir.errors import InputError
from pipeloom.planner.inputs.placement_spec import PlacementSpec
from pipeloom.planner.inputs.words import MemorySize, number_in, size_in, slow_in

Read = TypeVar("Read")

# more microbatches than anyone runs; arrays of that size would exhaust memory
MOST_MICROBATCHES = 100_000
MOST_PROCESSES = 1024


def _whole_number(least: int, most: int, words: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = _integer(text)
        if value is None or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number {words}, got {text!r}")
        return value

    return read


def _positive(what: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = number_in(text)
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
    return _read(slow_in, text)


def _read(reader: Callable[[str], Read], text: str) -> Read:
    """Read ``text`` with a function of the library; report its fault as argparse does."""
    try:
        return reader(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("placement: ")) from None


def _integer(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def placement(text: str) -> PlacementSpec:
    return _read(PlacementSpec.of, text)


def stages(text: str) -> list[int]:
    """``0,3``"""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"expected stages, such as 0,3, got {text!r}")
    return list(map(int, parts))


def number(text: str) -> float:
    value = number_in(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"expected a finite number, got {text!r}")
    return value


def limit(text: str) -> MemorySize:
    """``8``, ``20e9``, ``20G``, ``19.5 GiB``, ``none``."""
    return _read(size_in, text)


def scale(text: str) -> list[int]:
    """``8,16,32``"""
    return [at_least_one(word) for word in text.split(",")]


def limits(text: str) -> list[MemorySize]:
    """``A,B,...``, commas or spaces between, without doubles, from small to large."""
    return sorted(set(map(limit, re.split(r"(?:,\s*|\s+)(?=[0-9n])", text.strip(", ")))))
