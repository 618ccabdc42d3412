"""Memory sizes, times and counts as text for messages; memory is in the profile's unit."""

from __future__ import annotations

import math

_PREFIXES = ("", "k", "M", "G", "T", "P")


def amount(memory: float) -> str:
    """``memory`` as text with at most four digits: ``7.94``, ``1.61 M``; ``none`` for infinity."""
    return _prefixed(memory, 4)


def memory_size(memory: float) -> str:
    """``memory`` as text: ``7.94``, ``1.61 MB``. Numbers of at least 1000 are bytes."""
    return f"{amount(memory)}B" if math.isfinite(memory) and memory >= 1000 else amount(memory)


def memory_unit(most: float) -> str:
    """The text `` in the profile's unit``, or "" if sizes are shown as bytes.

    Sizes are assumed to be bytes if ``most``, the largest size shown, is at least 1000.
    """
    return "" if most >= 1000 else " in the profile's unit"


def sufficient_size(memory: float) -> str:
    """``memory`` as text, rounded up to at most five digits: ``7.94``, ``2.1 GB``, ``1.6107 GB``.

    The text can be used as a memory limit, as it is never below ``memory``.
    """
    if not 0 < memory < math.inf:
        return memory_size(memory)
    shown = float(f"{memory:.5g}")
    if shown < memory:
        shown += 10.0 ** (math.floor(math.log10(memory)) - 4)
    return _prefixed(shown, 5) + ("B" if memory >= 1000 else "")


def unit_meant(limit: float, least: float) -> str:
    """A hint that a memory limit may lack its unit, such as ``; did you mean 30GB?``, or "".

    ``least``: the bytes that are needed. The unit is MB if ``limit`` megabytes suffice, otherwise
    GB. The result is "" if neither suffices, ``limit`` is at least 1000, or ``least`` below 1e6.
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
    """A time as text with at most five digits: ``12.011 s``, ``812.9 ms``, ``45.1 us``.

    The unit is s for times of at least 10 s, ms for times of at least 1 ms, and us for shorter
    ones. It follows from the time ``most`` (in ms), so that several times can have the same unit;
    without ``most``, or if the number would then need an exponent, it follows from
    ``milliseconds``. The time is first rounded to eight digits, so that rounding errors do not
    decide the last digit shown.
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
    """``count`` with its noun: ``1 rank``, ``3 microbatches``. ``thing``: the singular noun."""
    if count == 1:
        return f"1 {thing}"
    return f"{count} {thing}{'es' if thing.endswith('h') else 's'}"
