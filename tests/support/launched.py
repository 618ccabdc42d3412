"""Several cases, or functions, in one launch, kept for each test that asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, Protocol, TypeVar

from pipeloom.runtime.launch.processes import launch

Case = TypeVar("Case", bound=Hashable)
Outcome = TypeVar("Outcome")


Call = tuple[Callable[..., Any], tuple[Any, ...]]


def in_one_launch(ranks: int, calls: Sequence[Call]) -> list[list[Any]]:
    """Of each call what it returns on each rank; they follow each other in the same processes."""
    found = launch(_in_turn, ranks, (calls,), timeout=280, message_timeout=60)
    return [[found[rank][i] for rank in range(ranks)] for i in range(len(calls))]


def _in_turn(calls: Sequence[Call]) -> list[Any]:
    return [function(*args) for function, args in calls]


class Outcomes(Protocol[Case, Outcome]):
    """From a number of ranks to each case's outcomes, one a rank; of slow ones or of the others."""

    def __call__(self, ranks: int, slow: bool = ...) -> dict[Case, list[Outcome]]: ...


def launched(
    cases: Callable[[int], list[Case]],
    run_cases: Callable[[list[Case]], list[Outcome]],
    is_slow: Callable[[Case], bool] = lambda case: False,
) -> Outcomes[Case, Outcome]:
    """All cases of one world size in one launch, slow ones or the others."""

    @cache
    def once(ranks: int, slow: bool) -> dict[Case, list[Outcome]]:
        chosen = [case for case in cases(ranks) if is_slow(case) is slow]
        found = launch(run_cases, ranks, (chosen,), timeout=240, message_timeout=60)
        return {case: [found[rank][i] for rank in range(ranks)] for i, case in enumerate(chosen)}

    return lambda ranks, slow=False: once(ranks, slow)


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits for it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)
