"""How each problem of a plan is solved: with common options, cache and listener."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeloom.ir.cost.memory_footprint import footprint
from pipeloom.ir.units import memory_size
from pipeloom.solver.core.options import Order, SolveOptions
from pipeloom.solver.core.tolerances import ROUNDING
from pipeloom.solver.optimize import optimize

from .cache import Question, ScheduleCache, about_problem
from .progress import Listener, Note, Searched, Searching, unheard

if TYPE_CHECKING:
    from pipeloom.ir.model.problem import Problem
    from pipeloom.ir.model.schedule import Schedule
    from pipeloom.solver.core.progress import Progress


@dataclass(frozen=True, slots=True)
class CachedSearch:
    """The optimizer with options for one problem, or shared by several.

    ``progress`` is called with the progress of each search.
    """

    options: SolveOptions
    cache: ScheduleCache | None = None
    progress: Listener = unheard

    @classmethod
    def of(
        cls, options: SolveOptions, cache: str | ScheduleCache | None, progress: Listener | None
    ) -> CachedSearch:
        """A search with a cache, given as an object or a folder.

        If all is recomputed there is none, as this option is not part of the cache's questions.
        Raises InputError if the folder cannot be created.
        """
        tell = progress or unheard
        if not cache or options.recompute_all:
            return cls(options, progress=tell)
        if isinstance(cache, str):
            cache = ScheduleCache(cache, lambda line: tell(Note(line)))
        return cls(options, cache, tell)

    @property
    def stopped(self) -> bool:
        """Whether the caller has stopped it."""
        return self.options.should_stop()

    def share(self, share: float) -> CachedSearch:
        """The same search with a share of the time or work limit."""
        return replace(self, options=self.options.share(share))

    def solve(
        self, problem: Problem, name: str = "", *, by_step: bool = False, start: Order | None = None
    ) -> Schedule:
        """The best schedule found, or the one in the cache; a new one is cached.

        ``name``: the search's name in progress events. ``by_step``: schedules that pass weights are
        compared by step time. ``start``: the initial order of ops. Raises the optimizer's errors.
        """
        question = about_problem(problem, self.options, by_step)
        known = self.known(question, f"{name}: " if name else "")
        if known is not None:
            return known[0]
        schedule = self.run(problem, name, by_step=by_step, start=start)
        self.keep(question, schedule)
        return schedule

    def known(self, question: Question, label: str = "") -> tuple[Schedule, dict[str, Any]] | None:
        """The cached answer and the facts stored with it, reported to the listener with ``label``;
        None if there is none."""
        found = None if self.cache is None else self.cache.find(question)
        if self.cache is not None and found is not None:
            self.progress(Note(f"{label}taken from the cache: {self.cache.path(question)}"))
        return found

    def keep(
        self, question: Question, schedule: Schedule, more: dict[str, Any] | None = None
    ) -> None:
        """Store an answer in the cache, if there is one, unless the search was stopped."""
        if self.cache is not None and not self.stopped:
            self.cache.keep(question, schedule, more)

    def run(
        self, problem: Problem, name: str = "", *, by_step: bool = False, start: Order | None = None
    ) -> Schedule:
        """The best schedule found, starting from the order ``start`` if it is given.

        If the caller has already stopped, nothing is reported to the listener.
        """
        tell = unheard if self.stopped else self.progress

        def told(now: Progress) -> None:
            tell(Searching(name, now, by_step))

        schedule = optimize(problem, self.options, progress=told, by_step=by_step, start=start)
        tell(Searched(name, schedule, self._ending(schedule), by_step))
        return schedule

    def _ending(self, schedule: Schedule) -> str:
        """Why a search that proved nothing ended."""
        if self.stopped:
            return "stopped"
        if self.options.work_limit is not None:
            return "work is done"
        seconds = schedule.report.solve_seconds if schedule.report else None
        early = seconds is not None and seconds < self.options.time_limit
        return "nothing better found" if early else "time is up"


def memory_held(schedule: Schedule) -> Sequence[float]:
    """Peak memory of each rank of the compiled schedule, with weights, in the profile's unit."""
    return footprint(schedule).total


def too_full(schedule: Schedule) -> str | None:
    """The rank that exceeds its ``device_memory`` by the most, in words; None if all fit."""
    devices = schedule.problem.profile.device_memory
    if devices is None:
        return None
    held = footprint(schedule).total
    rank = max(range(len(held)), key=lambda at: held[at] - devices[at])
    if held[rank] <= devices[rank] * (1 + ROUNDING):
        return None
    return (
        f"device_memory: rank {rank} holds {memory_size(held[rank])} with the weights, gradients "
        f"and optimizer state of its stages, more than {memory_size(devices[rank])}"
    )
