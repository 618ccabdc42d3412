"""Sizes of memory, times and counts in words; the unit of memory is the profile's."""

from __future__ import annotations

import math

_PREFIXES = ("", "k", "M", "G", "T", "P")


def amount(memory: float) -> str:
    """``7.94``, ``1.61 M``: four digits at most."""
    return _prefixed(memory, 4)


def memory_size(memory: float) -> str:
    """``7.94``, ``1.61 MB``: as :func:`amount`; what is large enough for a prefix is in bytes."""
    return f"{amount(memory)}B" if math.isfinite(memory) and memory >= 1000 else amount(memory)


def memory_unit(most: float) -> str:
    """`` in the profile's unit`` if sizes up to ``most`` are too small for bytes, else nothing."""
    return "" if most >= 1000 else " in the profile's unit"


def sufficient_size(memory: float) -> str:
    """``7.94``, ``2.1 GB``, ``1.6107 GB``: five digits, rounded up, so that it suffices as a
    limit."""
    if not 0 < memory < math.inf:
        return memory_size(memory)
    shown = float(f"{memory:.5g}")
    if shown < memory:
        shown += 10.0 ** (math.floor(math.log10(memory)) - 4)
    return _prefixed(shown, 5) + ("B" if memory >= 1000 else "")


def unit_meant(limit: float, least: float) -> str:
    """``; did you mean 30GB?`` of a limit of 30 where at least ``least`` bytes are needed; MB where
    these are enough."""
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
    """``12.011 s``, ``812.9 ms``, ``45.1 us``: five digits at most, in the unit of ``most``, the
    time itself by default, and where the number would have an exponent otherwise."""
    if most is not None and "e-" not in (shown := _in_unit_of(most, milliseconds)):
        return shown
    return _in_unit_of(milliseconds, milliseconds)


def _in_unit_of(most: float, milliseconds: float) -> str:
    if most >= 1e4:
        return f"{milliseconds / 1e3:.5g} s"
    if most >= 0.999995 or most == 0:  # no 1000 us
        return f"{milliseconds:.5g} ms"
    return f"{milliseconds * 1e3:.5g} us"


def counted(count: int, thing: str) -> str:
    """``1 rank``, ``3 microbatches``; ``thing``: one of them."""
    if count == 1:
        return f"1 {thing}"
    return f"{count} {thing}{'es' if thing.endswith('h') else 's'}"
