"""Methods that improve the best schedule in turn; those that find nothing get less time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..core.incumbent import Incumbent
from ..core.stopping import OPS_A_SECOND
from ..core.worker_threads import Pieces

# least time of a method without success, as a share of that of a successful one
LEAST_SHARE = 1 / 8


class Round(Protocol):
    """A method that improves the best schedule in short rounds, as long as it is ``able`` to."""

    @property
    def able(self) -> bool: ...

    def round(self, best: Incumbent) -> bool | None:
        """Run one round. True if it made progress, though the best schedule is not better yet."""
        ...


def improve(best: Incumbent, rounds: Sequence[Round]) -> Pieces:
    """Run the method that has used least time, as long as any is able.

    The time of methods without success counts more: twice as much after each round that found
    nothing, up to eight times as much.
    """
    spent, weight = [0.0] * len(rounds), [1.0] * len(rounds)
    while able := [i for i, each in enumerate(rounds) if each.able]:
        i = min(able, key=lambda i: spent[i])
        before, began = best.cost, _spent(best)
        went_on = rounds[i].round(best)
        weight[i] = 1.0 if went_on or best.cost < before else min(2 * weight[i], 1 / LEAST_SHARE)
        spent[i] += weight[i] * (_spent(best) - began)
        yield


def _spent(best: Incumbent) -> float:
    """Seconds so far or, if work is limited, the seconds that the work done usually takes."""
    return best.work.used / OPS_A_SECOND if best.limited else best.seconds
