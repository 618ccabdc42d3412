"""A lower bound and the reason for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bound:
    """No valid schedule costs less than ``value``; ``words`` is the reason in one line."""

    value: float
    name: str
    words: str
