"""Several methods that improve the best schedule take turns.

Those that find nothing get less time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..core.incumbent import Incumbent
from ..core.stopping import OPS_A_SECOND
from ..core.worker_threads import Pieces

LEAST_SHARE = 1 / 8  # minimum time of a method without success, relative to a successful one


END = object()  # stands for the end of an iterator


class Round(Protocol):
    """A method that improves the best schedule in short rounds.

    ``able``: whether the method can run another round.
    """

    @property
    def able(self) -> bool: ...

    def round(self, best: Incumbent) -> bool | None:
        """Run one round, and offer the schedules found to ``best``.

        Returns True if the method made progress of its own, even if ``best`` has not improved;
        False or None if it did not, or if only an improvement of ``best`` counts as progress.
        """
        ...


class Once:
    """A method that runs one iterator of pieces of work to its end, a piece per round."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces, self.able = pieces, True

    def round(self, best: Incumbent) -> None:
        self.able = next(self._pieces, END) is not END


class MethodTurns:
    """A method that alternates between several others.

    Each round is a round of the method that has used the least time so far. The time of each round
    is multiplied by the method's present weight. The weight doubles, up to 8, with each of the
    method's rounds that finds nothing, and returns to 1 after a success.
    """

    def __init__(self, methods: Sequence[Round]) -> None:
        self._methods = methods
        self._spent, self._weight = [0.0] * len(methods), [1.0] * len(methods)

    @property
    def able(self) -> bool:
        return any(each.able for each in self._methods)

    def round(self, best: Incumbent) -> bool:
        able = [i for i, each in enumerate(self._methods) if each.able]
        i = min(able, key=lambda i: self._spent[i])
        before, began = best.cost, _spent(best)
        won = bool(self._methods[i].round(best)) or best.cost < before
        self._weight[i] = 1.0 if won else min(2 * self._weight[i], 1 / LEAST_SHARE)
        self._spent[i] += self._weight[i] * (_spent(best) - began)
        return won

    def pieces(self, best: Incumbent) -> Pieces:
        while self.able:
            self.round(best)
            yield


def _spent(best: Incumbent) -> float:
    """Return the seconds spent on the solve so far.

    If the solve has a work limit, they are computed from the work done, not read from the clock.
    """
    return best.work.used / OPS_A_SECOND if best.limited else best.seconds
