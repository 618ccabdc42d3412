"""Methods that improve the best schedule in turn; those that find nothing get less time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..core.incumbent import Incumbent
from ..core.stopping import OPS_A_SECOND
from ..core.worker_threads import Pieces

LEAST_SHARE = 1 / 8  # least time of a method without success, relative to a successful one


END = object()  # of pieces


class Round(Protocol):
    """A method that improves the best schedule in short rounds, as long as it is ``able`` to."""

    @property
    def able(self) -> bool: ...

    def round(self, best: Incumbent) -> bool | None:
        """Run one round. True if it made progress, though the best schedule is not better yet."""
        ...


class Once:
    """A method that ends: each round is the next of its pieces."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces, self.able = pieces, True

    def round(self, best: Incumbent) -> None:
        self.able = next(self._pieces, END) is not END


class MethodTurns:
    """Several methods; each round is one of the method that has used least time.

    The time of methods without success counts more: twice as much after each round that found
    nothing, up to eight times as much.
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
    """Seconds so far or, if work is limited, the seconds that the work done usually takes."""
    return best.work.used / OPS_A_SECOND if best.limited else best.seconds
