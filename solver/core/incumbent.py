"""The state of one solve: the best schedule so far, the bound, the clock, and who listens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from threading import RLock, get_ident
from time import monotonic

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import pulled
from pipeloom.ir.cost.simulator import Simulator, timed
from pipeloom.ir.model.ops import offsets_of
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Report, Schedule, Transfer

from .bound import Bound
from .methods import family_of
from .options import Order, SolveOptions
from .progress import Progress, is_built
from .schedule_cost import objective_cost, status_under
from .stopping import OPS_A_SECOND, Budget, Interrupt, TimeLimit, WorkLimit, clock
from .tolerances import CLOSED

Pairs = tuple[tuple[int, ...], ...]
"""The places in each rank's order where an F and a BW run at once."""
SLICE = 10_000_000  # simulated ops of a slice of a round of search, about 0.2 s
SLICES = 16  # that limited work has room for at least
MARKS = (1 / 8, 1 / 4, 1 / 2, 1.0)  # shares of limited work at which workers exchange schedules


class Incumbent:
    """The best order offered. ``over`` says when to stop: proven, out of time or told to.

    Any thread may offer orders and bounds and ask whether it is over. ``progress`` and
    ``should_stop`` are called in the thread alone that made the incumbent. ``interrupt`` is one
    flag for kernels to look at: it is raised when all is over.

    With a ``work_limit`` everything is to be repeatable: nothing depends on the clock
    (``time_limit`` does not count), each worker has a copy of its own, and these are compared where
    they have done the same work. Only an interrupt ends it elsewhere.

    ``slice``: the simulated ops of a slice of a round of search: fewer where all work is little, so
    that other methods have their turns. ``beat``: a cost that is known elsewhere: once the bound
    reaches it, time ends.
    """

    def __init__(self, problem: Problem, bound: Bound, options: SolveOptions) -> None:
        self.problem, self.bound = problem, bound
        self._costs = Costs.of(problem)
        self.cost = inf
        self.order: Order | None = None
        self.pairs: Pairs = ()
        self.transfers: tuple[Transfer, ...] = ()
        self.method: str | None = None
        self.one_worker = False
        self.beat = inf
        self._began, self._told = clock(), monotonic()
        self.limited = options.work_limit is not None
        self.time = TimeLimit(inf if self.limited else options.time_limit)
        self.work = WorkLimit(options.ops)
        self.slice = min(SLICE, options.ops / SLICES)
        self.interrupt = Interrupt()
        self._options = options
        self._views: Sequence[Incumbent] = ()
        self._owner = get_ident()
        self._lock = RLock()
        self._news = self._told_to_stop = False

    @property
    def seconds(self) -> float:
        return clock() - self._began

    @property
    def built(self) -> bool:
        return is_built(self.method)

    @property
    def closed(self) -> bool:
        return self.order is not None and self.cost - self.bound.value <= CLOSED * self.cost

    @property
    def beaten(self) -> bool:
        """Whether there is a schedule, and none can cost less than what is known elsewhere."""
        return self.order is not None and self.bound.value >= self.beat * (1 - CLOSED)

    def over(self) -> bool:
        """Whether to stop; tells the listener what is new, and about once a second."""
        return self.interrupted() or self.closed or self.work()

    def interrupted(self) -> bool:
        """Whether to stop at once, even in the middle of limited work."""
        if get_ident() == self._owner:
            if self._news or monotonic() - self._told >= 1.0:
                self._tell()
            if self._options.should_stop():
                self._told_to_stop = True
                self.stop()
        if not self.limited and (self.closed or self.beaten or self.time()):
            self.stop()
        return self.interrupt()

    @property
    def exhausted(self) -> bool:
        """Out of time or work, or told to stop; whether proven or not."""
        self.interrupted()
        return self._told_to_stop or self.time() or self.work()

    @property
    def ended(self) -> bool:
        """Whether to leave whatever is still going on; limited work only where told to.

        Time that is up is not enough where nothing but :data:`.progress.FALLBACK` is there: at
        their first use kernels are compiled for seconds, and many ops take long to put in any
        order.
        """
        self.interrupted()
        timed_out = not self.limited and self.interrupt()
        return self._told_to_stop or (timed_out and self.built)

    @property
    def share_left(self) -> float:
        """The share left of the time or the work that is limited; 1 where neither is."""
        return min(self.time.share_left, 1 - self.work.used / self._options.ops)

    def resume(self, seconds: float) -> None:
        """Goes on for so many more seconds; limited work goes on as it is."""
        if not self.limited:
            self.time = TimeLimit(seconds)
            self.interrupt.put(self._told_to_stop)

    def stop(self) -> None:
        """Ends the solve for all threads, until it is resumed."""
        self.interrupt.put()
        for view in self._views:
            view.interrupt.put()

    def budget(self, share: float = 1.0, seconds: float = inf) -> Budget:
        """A share of what is left until the end, or of the work until workers compare next."""
        if self.limited:
            ops = min(seconds * OPS_A_SECOND, share * self.work.left)
            return Budget(ops=ops, interrupt=self.interrupt)
        return Budget(min(seconds, share * self.time.left), interrupt=self.interrupt)

    def found(self) -> tuple[Order, Pairs, float]:
        with self._lock:
            assert self.order is not None
            return self.order, self.pairs, self.cost

    def offer(
        self, order: Order, method: str, cost: float | None = None, pairs: Pairs = ()
    ) -> bool:
        """Takes ``order``, one array of packed ops per rank, and its pairs where they cost less."""
        cost = self._cost(order, pairs) if cost is None else cost
        if not cost < self.cost:
            return False
        order = tuple(map(np.copy, order))
        with self._lock:
            if not cost < self.cost:  # another thread was faster
                return False
            self.order, self.pairs, self.cost, self.method = order, pairs, cost, method
        self._changed()
        return True

    def take(self, schedule: Schedule, cost: float) -> None:
        """Takes a schedule with streamed weights, even where the best so far costs the same.

        ``cost``: by the objective, or by the step where the bound is on that.
        """
        assert schedule.report is not None
        with self._lock:
            self.order, self.transfers, self.cost = schedule.order, schedule.transfers, cost
            self.method = schedule.report.method
        self._changed()

    def raise_bound(self, bound: Bound) -> None:
        with self._lock:
            if not bound.value > self.bound.value:
                return
            self.bound = bound
        self._changed()

    def schedule(self, solver: str, seed: int, bound: Bound | None = None) -> Schedule:
        """The best schedule with its times and its report.

        ``bound``: the objective's, where schedules were not compared by that.
        """
        with self._lock:
            order, method, known = self.order, self.method, bound or self.bound
            pairs, transfers = self.pairs, self.transfers
        assert order is not None
        found = timed(Schedule(self.problem, order, transfers, pairs=pairs))
        cost = objective_cost(found)
        # rounding may put a proven bound a hair above a cost that meets it; more would be a wrong
        # proof
        assert known.value <= cost * (1 + CLOSED), f"{known} above {cost}"
        report = Report(
            objective=self.problem.objective,
            family=family_of(method or ""),
            method=method,
            status=status_under(known.value, cost),
            lower_bound=min(known.value, cost),
            bound=known.name,
            solver=solver,
            solve_seconds=self.seconds,
            seed=seed,
        )
        return replace(found, report=report)

    def views(self, number: int) -> Sequence[Incumbent]:
        """The incumbents of so many workers: this one, or copies of it where work is limited."""
        if not self.limited:
            return [self] * number
        self._views = [
            Incumbent(self.problem, self.bound, SolveOptions(work_limit=self._options.work_limit))
            for _ in range(number)
        ]
        for view in self._views:
            view.work.used = self.work.used
            view._adopt(self)
        return self._views

    def marks(self, views: Sequence[Incumbent]) -> Iterator[None]:
        """How often the workers set out: once, or from mark to mark, exchanging the best."""
        if not self.limited:
            yield
            return
        for share in MARKS:
            if self.over():
                return
            for view in views:
                view.work.ops = share * self._options.ops
            yield
            self.gather()
            for view in views:
                view._adopt(self)
            self.work.used = max(view.work.used for view in views)

    def gather(self) -> None:
        for view in self._views:
            self._adopt(view)

    def _adopt(self, other: Incumbent) -> None:
        self.raise_bound(other.bound)
        with other._lock:  # its worker may still go on
            order, pairs, cost, method = other.order, other.pairs, other.cost, other.method
        if cost < self.cost:
            with self._lock:
                self.order, self.pairs, self.cost, self.method = order, pairs, cost, method
            self._changed()

    def _cost(self, order: Order, pairs: Pairs = ()) -> float:
        if any(pairs) or pulled(order):
            return objective_cost(Schedule(self.problem, order, pairs=pairs))
        # arrays of its own: other threads offer as well
        return Simulator(self.problem, offsets_of(order), self._costs).cost(np.concatenate(order))

    def _changed(self) -> None:
        """Tells the listener, or leaves that to the owner's thread."""
        if get_ident() == self._owner:
            self._tell()
        else:
            self._news = True
        if (self.closed or self.beaten) and not self.limited:
            self.stop()

    def _tell(self) -> None:
        self._news = False
        if self._options.progress is None:
            return
        self._told = monotonic()
        with self._lock:
            cost = None if self.order is None else self.cost
            bound, method = self.bound.value, self.method
        gap = None if cost is None else max(0.0, (cost - bound) / cost) if cost > 0 else 0.0
        self._options.progress(Progress(self.seconds, cost, bound, gap, method))
