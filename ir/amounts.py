"""Sizes of memory in words; their unit is the profile's."""

from __future__ import annotations

import math

_PREFIXES = ("", "k", "M", "G", "T", "P")


def amount(memory: float) -> str:
    """``7.94``, ``1.61 M``: four digits at most."""
    if not math.isfinite(memory):
        return "none"
    size, prefix = memory, 0
    while size >= 1000 and prefix + 1 < len(_PREFIXES):
        size, prefix = size / 1000, prefix + 1
    return f"{size:.4g} {_PREFIXES[prefix]}".rstrip()


def exact_amount(memory: float) -> str:
    """``7.94``, ``2.1 G (2100000000)``: with all digits, for who types it in again."""
    whole = float(memory).is_integer() and memory < 1e15
    digits = str(int(memory)) if whole else f"{memory:.12g}"
    return digits if not 1000 <= memory < math.inf else f"{amount(memory)} ({digits})"
