"""Several cases, or functions, in one launch, kept for each test that asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pipeloom.runtime import launch_ranks

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def in_one_launch(ranks: int, calls: Sequence[Call]) -> list[list[Any]]:
    """Of each call what it returns on each rank; they follow each other in the same processes."""
    found = launch_ranks(_in_turn, ranks, (calls,), timeout=280, message_timeout=60)
    return [[found[rank][i] for rank in range(ranks)] for i in range(len(calls))]


def _in_turn(calls: Sequence[Call]) -> list[Any]:
    return [function(*args) for function, args in calls]


def until(condition: Callable[[], object], seconds: float = 240.0) -> None:
    """Waits for it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)
