"""Why pipelines pass what they pass, where a plan may choose: the best that passes the other."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from pipeloom.ir.model.placement import Passing
from pipeloom.ir.units import duration
from pipeloom.report.summaries import percent

from .choose import Ranking
from .configuration import MOST_STREAMED
from .evaluation import planned_step
from .reasons import parts_of, reason
from .space import Space


@dataclass(frozen=True, slots=True)
class OtherPassing:
    """The plans that pass what the best one does not, whose step is ``best_ms``.

    ``name``: of the fastest that was simulated, else of the one with the least bound, else of the
    one that needs the least memory; empty where the space has none. ``step_ms``: None where none
    was simulated. ``lower_bound``: milliseconds that none is below, None where none fits.
    ``memory_gib``: what each needs at least, where none fits. ``reason``: what takes longer.
    """

    passing: str
    best_ms: float
    name: str = ""
    step_ms: float | None = None
    lower_bound: float | None = None
    memory_gib: float | None = None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The object at ``other_passing`` of ``plan --json``."""
        return {key: value for key, value in asdict(self).items() if key != "best_ms"}

    def __str__(self) -> str:
        words = f"passing {self.passing}:"
        if self.step_ms is not None and self.step_ms <= self.best_ms:
            return f"{words} {self.name} takes as long"
        if self.step_ms is not None:
            return f"{words} {self.name}, {duration(self.step_ms)}{self._more(self.step_ms)}"
        if self.lower_bound is not None:
            least = duration(self.lower_bound)
            return f"{words} no plan takes less than {least}{self._more(self.lower_bound)}"
        if self.memory_gib is not None:
            return f"{words} nothing fits: {self.name} needs at least {self.memory_gib:.1f} GiB"
        return (
            f"{words} no plan of the space does: it takes a pipeline of no more ranks than "
            f"microbatches, one stage a rank, at most {MOST_STREAMED} pairs of stage and "
            "microbatch, and states whole or zero1"
        )

    def _more(self, time: float) -> str:
        if time <= self.best_ms:
            return f" ({self.name}), and none was found in the time given"
        more = f", {percent(time / self.best_ms - 1)} more"
        return f"{more}: {self.reason}" if self.reason else f"{more} ({self.name})"


def other_passing(space: Space, ranking: Ranking) -> OtherPassing | None:
    """The plans with the other passing; None where the space has one alone."""
    best = ranking.evaluated[0]
    if not (space.weights and space.activations):
        return None
    weights = best.configuration.passing is Passing.WEIGHTS
    passing = Passing.ACTIVATIONS if weights else Passing.WEIGHTS
    found = (each for each in ranking.evaluated if each.configuration.passing is passing)
    own = next((each for each in found if each.step_ms < inf), None)
    bound, name = ranking.least.get(passing, (None, ""))
    if own is not None:
        of_own, of_best = (
            parts_of(planned_step(space.model, space.cluster, each)) for each in (own, best)
        )
        name, why = own.configuration.name, reason(of_own, of_best)
        return OtherPassing(passing.value, best.step_ms, name, own.step_ms, bound, reason=why)
    if bound is not None:
        return OtherPassing(passing.value, best.step_ms, name, lower_bound=bound)
    memory, name = ranking.leanest.get(passing, (None, ""))
    return OtherPassing(passing.value, best.step_ms, name, memory_gib=memory)
