"""Methods that improve the best schedule in turn; what finds nothing gets less time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..core.incumbent import Incumbent
from ..core.stopping import OPS_A_SECOND
from ..core.worker_threads import Pieces

LEAST_SHARE = 1 / 8  # of the time of a method that finds something, for one that finds nothing


class Round(Protocol):
    """A method that improves the best schedule for a moment, as long as it is ``able`` to."""

    @property
    def able(self) -> bool: ...

    def round(self, best: Incumbent) -> bool | None:
        """True where it went on without finding a better schedule yet."""
        ...


def improve(best: Incumbent, rounds: Sequence[Round]) -> Pieces:
    """Runs the round that has had least time while any is able; time without success counts more:
    twice as much after each round that found nothing, up to eight times as much."""
    spent, weight = [0.0] * len(rounds), [1.0] * len(rounds)
    while able := [i for i, each in enumerate(rounds) if each.able]:
        i = min(able, key=lambda i: spent[i])
        before, began = best.cost, _spent(best)
        went_on = rounds[i].round(best)
        weight[i] = 1.0 if went_on or best.cost < before else min(2 * weight[i], 1 / LEAST_SHARE)
        spent[i] += weight[i] * (_spent(best) - began)
        yield


def _spent(best: Incumbent) -> float:
    """Seconds, or the work that takes so many where all is to be repeatable."""
    return best.work.used / OPS_A_SECOND if best.limited else best.seconds
