"""What training under faults takes for a broken promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.slow_link.chaos.faults import differing, ended
from benchmarks.slow_link.chaos.started import Started


class Ended(Started):
    """A start whose ranks have ended, and wrote these lines."""

    def __init__(self, *lines: list[str]) -> None:
        self.folder, self.ranks, self._lines = Path(), [], list(lines)

    def lines(self) -> list[list[str]]:
        return self._lines


NAMED = ["step 0 1.0", "pipeloom: rank 2: forward; no answer from rank 1"]


@pytest.mark.parametrize(
    ("second", "broken"),
    [
        (NAMED, []),
        (["pipeloom: connection closed"], ["does not name rank 1"]),
        ([], ["rank 2 said []"]),
        ([*NAMED, "pipeloom: and more"], ["rank 2 said ["]),
    ],
)
def test_each_rank_but_the_culprit_says_one_line_that_names_it(
    second: list[str], broken: list[str]
) -> None:
    found = ended(Ended(NAMED, [], second), 1)
    assert len(found) == len(broken)
    assert all(words in line for words, line in zip(broken, found, strict=True))


def test_losses_are_those_of_the_undisturbed_run() -> None:
    whole: dict[int, Any] = {0: 1.0, 1: 0.5, 2: 0.25}
    assert differing({1: 0.5, 2: 0.25, 3: 9.0}, whole, None) == []
    assert differing({1: 0.5, 2: 0.26}, whole, None) == ["step 2: loss 0.26, undisturbed 0.25"]
    assert differing({1: 0.5, 2: float("nan")}, whole, poisoned=2) == []
