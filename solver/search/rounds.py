"""Methods that improve the best schedule in turn; what finds nothing has fewer turns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Protocol

from ..core.incumbent import Incumbent
from ..core.worker_threads import Pieces

LONGEST_PAUSE = 7  # turns that a search waits at most which finds nothing


class Round(Protocol):
    """A method that improves the best schedule for a moment, as long as it is ``able`` to."""

    @property
    def able(self) -> bool: ...

    def round(self, best: Incumbent) -> None: ...


def improve(best: Incumbent, rounds: Sequence[Round]) -> Pieces:
    """Goes round while any of ``rounds`` is able; one that finds nothing pauses ever longer."""
    pauses, due = [0] * len(rounds), [0] * len(rounds)
    for turn in count():
        if not any(each.able for each in rounds):
            return
        for i, each in enumerate(rounds):
            if each.able and due[i] <= turn:
                before = best.cost
                each.round(best)
                pauses[i] = 0 if best.cost < before else min(2 * pauses[i] + 1, LONGEST_PAUSE)
                due[i] = turn + 1 + pauses[i]
                yield
