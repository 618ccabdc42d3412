"""Sizes of memory, times and counts as text; the unit of memory is the profile's."""

from __future__ import annotations

import math

_PREFIXES = ("", "k", "M", "G", "T", "P")


def amount(memory: float) -> str:
    """``7.94``, ``1.61 M``: at most four digits."""
    return _prefixed(memory, 4)


def memory_size(memory: float) -> str:
    """``7.94``, ``1.61 MB``: like :func:`amount`; numbers from 1000 up are taken as bytes."""
    return f"{amount(memory)}B" if math.isfinite(memory) and memory >= 1000 else amount(memory)


def memory_unit(most: float) -> str:
    """`` in the profile's unit`` if ``most``, the largest size shown, is too small for bytes."""
    return "" if most >= 1000 else " in the profile's unit"


def sufficient_size(memory: float) -> str:
    """``7.94``, ``2.1 GB``, ``1.6107 GB``: at most five digits, rounded up.

    The text can be used as a memory limit: it is never below ``memory``.
    """
    if not 0 < memory < math.inf:
        return memory_size(memory)
    shown = float(f"{memory:.5g}")
    if shown < memory:
        shown += 10.0 ** (math.floor(math.log10(memory)) - 4)
    return _prefixed(shown, 5) + ("B" if memory >= 1000 else "")


def unit_meant(limit: float, least: float) -> str:
    """``; did you mean 30GB?`` for a limit of 30 if at least ``least`` bytes are needed.

    MB if so many megabytes are enough. Empty if a missing unit does not explain the limit.
    """
    if not (limit < 1e3 and 1e6 <= least <= limit * 1e9):
        return ""
    unit = "MB" if least <= limit * 1e6 else "GB"
    return f"; did you mean {sufficient_size(limit)}{unit}?"


def _prefixed(memory: float, digits: int) -> str:
    if not math.isfinite(memory):
        return "none"
    size, prefix = memory, 0
    while size >= 1000 and prefix + 1 < len(_PREFIXES):
        size, prefix = size / 1000, prefix + 1
    return f"{size:.{digits}g} {_PREFIXES[prefix]}".rstrip()


def duration(milliseconds: float, most: float | None = None) -> str:
    """``12.011 s``, ``812.9 ms``, ``45.1 us``: at most five digits.

    The unit is that of the time ``most`` (ms), by default ``milliseconds`` itself, or if the number
    would have an exponent otherwise. Rounding errors do not decide the last digit.
    """
    milliseconds = float(f"{milliseconds:.8g}")
    if most is not None and "e-" not in (shown := _in_unit_of(most, milliseconds)):
        return shown
    return _in_unit_of(milliseconds, milliseconds)


def _in_unit_of(most: float, milliseconds: float) -> str:
    if most >= 1e4:
        return f"{milliseconds / 1e3:.5g} s"
    if most >= 0.999995 or most == 0:  # never 1000 us
        return f"{milliseconds:.5g} ms"
    return f"{milliseconds * 1e3:.5g} us"


def counted(count: int, thing: str) -> str:
    """``1 rank``, ``3 microbatches``; ``thing`` is the singular."""
    if count == 1:
        return f"1 {thing}"
    return f"{count} {thing}{'es' if thing.endswith('h') else 's'}"
