"""All cases of one world size in one launch, kept for every test that asks for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from pipeloom.runtime.launch import launch

Case = TypeVar("Case")
Outcome = TypeVar("Outcome")


def launched(
    cases: Callable[[int], list[Case]], run_cases: Callable[[list[Case]], list[Outcome]]
) -> Callable[[int], dict[Case, list[Outcome]]]:
    """A function from the number of ranks to each case's outcomes, one a rank."""

    @cache
    def outcomes(ranks: int) -> dict[Case, list[Outcome]]:
        chosen = cases(ranks)
        found = launch(run_cases, ranks, (chosen,), timeout=240, message_timeout=60)
        return {case: [found[rank][i] for rank in range(ranks)] for i, case in enumerate(chosen)}

    return outcomes
