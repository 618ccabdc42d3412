"""The search for a schedule of each problem that a planning function poses, with common options and
one listener."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeloom.compiler.memory_footprint import footprint
from pipeloom.solver.core.options import Order, SolveOptions
from pipeloom.solver.optimize import optimize

from .progress import Listener, Searching, unheard

if TYPE_CHECKING:
    from pipeloom.ir.model.problem import Problem
    from pipeloom.ir.model.schedule import Schedule
    from pipeloom.solver.core.progress import Progress


@dataclass(frozen=True, slots=True)
class Search:
    """The optimizer with options, to solve one or several problems.

    ``options``: if several problems share a limit, :meth:`share` gives each its part. ``progress``:
    the listener that receives the progress of each search.
    """

    options: SolveOptions
    progress: Listener = unheard

    @property
    def stopped(self) -> bool:
        """Whether the caller has asked to stop."""
        return self.options.should_stop()

    def share(self, share: float) -> Search:
        """Return the same search with a fraction ``share`` of its time limit or work limit."""
        return replace(self, options=self.options.share(share))

    def run(
        self, problem: Problem, name: str = "", *, by_step: bool = False, start: Order | None = None
    ) -> Schedule:
        """Return the best schedule found for ``problem``.

        ``name``: the search's name in progress events. ``by_step``: whether schedules that pass
        weights are compared by step time instead of the objective. ``start``: the initial order of
        ops; None means that the optimizer builds one. If the caller has already asked to stop, no
        progress is reported. Raises the optimizer's errors, such as InfeasibleError.
        """
        tell = unheard if self.stopped else self.progress

        def told(now: Progress) -> None:
            tell(Searching(name, now, by_step))

        return optimize(problem, self.options, progress=told, by_step=by_step, start=start)


def memory_held(schedule: Schedule) -> Sequence[float]:
    """Return the peak memory of each rank in the compiled schedule, including weights, (P,), in the
    profile's unit of memory."""
    return footprint(schedule).total
