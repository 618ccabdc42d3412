"""How each problem of a plan is solved: one set of limits, one cache, one listener."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeloom.ir.errors import InputError
from pipeloom.solver.portfolio import optimize

from .cache import Question, ScheduleCache
from .progress import Listener, Note, Searched, Searching, unheard

if TYPE_CHECKING:
    from pipeloom.ir.model.problem import Problem
    from pipeloom.ir.model.schedule import Schedule
    from pipeloom.solver.construct.linear import Rows
    from pipeloom.solver.core.incumbent import Progress

TIME_LIMIT = 60.0
"""Seconds, where none are given."""


@dataclass(frozen=True, slots=True)
class Search:
    """The optimizer's options, for one problem or shared by several.

    ``time_limit``: seconds. ``work_limit``: millions of simulated ops, instead of seconds.
    ``recompute_all``: whatever may be recomputed is; nothing is kept in a cache then.
    """

    solver: str = "auto"
    time_limit: float = TIME_LIMIT
    work_limit: float | None = None
    seed: int = 0
    recompute_all: bool = False
    cache: ScheduleCache | None = None
    progress: Listener = unheard
    should_stop: Callable[[], bool] = lambda: False

    @classmethod
    def of(
        cls,
        *,
        solver: str = "auto",
        time_limit: float | None = None,
        work_limit: float | None = None,
        seed: int = 0,
        recompute: str = "auto",
        cache: str | None = None,
        progress: Listener | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Search:
        """The same from the options of a function, where None is the default.

        Raises InputError, naming the option, where one is wrong.
        """
        for name, limit in (("time_limit", time_limit), ("work_limit", work_limit)):
            if limit is not None and not limit > 0:
                raise InputError(f"{name}: expected a number > 0, got {limit!r}")
        listener, every = progress or unheard, recompute == "all"
        return cls(
            solver,
            TIME_LIMIT if time_limit is None else time_limit,
            work_limit,
            seed,
            every,
            None if not cache or every else ScheduleCache(cache, lambda line: listener(Note(line))),
            listener,
            should_stop or (lambda: False),
        )

    def share(self, share: float) -> Search:
        """The same with a share of the time, or of the work."""
        work = None if self.work_limit is None else self.work_limit * share
        return replace(self, time_limit=self.time_limit * share, work_limit=work)

    def solve(self, problem: Problem, name: str = "", *, by_step: bool = False) -> Schedule:
        """The best schedule found, or the one in the cache, where a new one is kept.

        ``name``: what the listener is told that the search is of. ``by_step``: schedules are
        compared by their step, where weights travel. Raises what the optimizer does.
        """
        if self.cache is None:
            return self.run(problem, name, by_step=by_step)
        limits = self.time_limit, self.work_limit
        question = Question(problem, self.solver, self.seed, *limits, by_step)
        known = self.cache.find(question)
        if known is not None:
            label = f"{name}: " if name else ""
            self.progress(Note(f"{label}taken from the cache: {self.cache.path(question)}"))
            return known
        schedule = self.run(problem, name, by_step=by_step)
        if not self.should_stop():
            self.cache.keep(question, schedule)
        return schedule

    def run(
        self,
        problem: Problem,
        name: str = "",
        *,
        by_step: bool = False,
        start: Rows | None = None,
    ) -> Schedule:
        """The best schedule found from ``start``, an order that is known, if there is one."""

        def told(now: Progress) -> None:
            self.progress(Searching(name, now, by_step))

        schedule = optimize(
            problem,
            solver=self.solver,
            time_limit=self.time_limit,
            work_limit=self.work_limit,
            seed=self.seed,
            progress=told,
            should_stop=self.should_stop,
            memory=memory_held,
            by_step=by_step,
            recompute_all=self.recompute_all,
            start=start,
        )
        self.progress(Searched(name, schedule, self._ending(schedule), by_step))
        return schedule

    def _ending(self, schedule: Schedule) -> str:
        """Why a search ends that has proven nothing."""
        if self.should_stop():
            return "stopped"
        if self.work_limit is not None:
            return "work is done"
        seconds = schedule.report.solve_seconds if schedule.report else None
        early = seconds is not None and seconds < self.time_limit
        return "nothing better found" if early else "time is up"

    @property
    def work(self) -> float:
        """Simulated ops; inf where seconds limit the search."""
        return math.inf if self.work_limit is None else self.work_limit * 1e6

    @property
    def seconds(self) -> float:
        """inf where work limits the search."""
        return self.time_limit if self.work_limit is None else math.inf


def memory_held(schedule: Schedule) -> Sequence[float]:
    """What each rank holds in all where the compiled schedule runs, in the profile's unit."""
    from pipeloom.compiler import compile_schedule
    from pipeloom.ir.cost.memory_footprint import footprint

    return footprint(compile_schedule(schedule)).total
