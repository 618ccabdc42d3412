"""The state of one solve: the best schedule so far, the bound, the limits and the listener."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from threading import RLock, get_ident
from time import monotonic
from typing import NamedTuple

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import pulled
from pipeloom.ir.cost.simulator import Simulator, timed
from pipeloom.ir.errors import InfeasibleError
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
"""For each rank, the indices, in the rank's order of ops, of the F's that form pairs.

Such an F runs at the same time as the BW that follows it in the order.
"""
SLICE = 10_000_000  # simulated ops of one slice of search, which take about 0.2 s
SLICES = 16  # minimum number of slices in a work limit


class FoundOrder(NamedTuple):
    """The best order of ops that a solve has found, with its pairs, its cost and its method.

    ``order``: one array of packed ops per rank. ``method``: the method that found it. If no order
    is known, both are None, and ``cost`` is inf.
    """

    order: Order | None
    pairs: Pairs
    cost: float
    method: str | None


class Incumbent:
    """The best order offered so far, and the best lower bound, of one solve.

    :meth:`over` returns whether to stop: the order is proven optimal, the time or work limit is
    used up, or the user asked to stop. Any thread may offer orders and bounds and call
    :meth:`over`. ``progress`` and ``should_stop`` of the options are called only in the thread that
    created the incumbent. ``interrupt`` is a flag that kernels read; it is set when the solve is
    over.

    With a ``work_limit`` a solve is repeatable: nothing depends on the clock (``time_limit`` is
    ignored), and workers run in turn (:mod:`.worker_threads`). ``work`` is then the limit of the
    worker that is running.

    ``slice``: the number of simulated ops in one slice of search; it is reduced for a small work
    limit, so that every method gets some slices. ``beat``: the cost of a schedule known elsewhere;
    once the bound reaches it, the solve ends. ``lacking``: the error that says why the schedules
    found so far do not fit in memory; it is raised if none fits by the end.
    """

    def __init__(self, problem: Problem, bound: Bound, options: SolveOptions) -> None:
        self.problem, self.bound = problem, bound
        self._costs = Costs.of(problem)
        self.cost = inf
        self.order: Order | None = None
        self.pairs: Pairs = ()
        self.transfers: tuple[Transfer, ...] = ()
        self.method: str | None = None
        self.lacking: InfeasibleError | None = None
        self.beat = inf
        self._began, self._told = clock(), monotonic()
        self.limited = options.work_limit is not None
        self.time = TimeLimit(inf if self.limited else options.time_limit)
        self.work = WorkLimit(options.ops)
        self.slice = min(SLICE, options.ops / SLICES)
        self.interrupt = Interrupt()
        self._options = options
        self._owner = get_ident()
        self._lock = RLock()
        self._news = self._told_to_stop = False

    @property
    def seconds(self) -> float:
        """Seconds since the start of the solve, without the time in which kernels are compiled."""
        return clock() - self._began

    @property
    def built(self) -> bool:
        """Whether a method other than :data:`.progress.FALLBACK` found the best schedule."""
        return is_built(self.method)

    @property
    def closed(self) -> bool:
        """Whether the best schedule is proven optimal: cost and bound are equal, within CLOSED."""
        return self.order is not None and self.cost - self.bound.value <= CLOSED * self.cost

    @property
    def beaten(self) -> bool:
        """Whether a schedule is known, and it is proven that none costs less than ``beat``."""
        return self.order is not None and self.bound.value >= self.beat * (1 - CLOSED)

    def over(self) -> bool:
        """Return whether the solve is over: proven optimal, out of time or work, or stopped.

        In the thread that created the incumbent, this also calls the listener, if something has
        changed or a second has passed since the last call.
        """
        return self.interrupted() or self.closed or self.work()

    def interrupted(self) -> bool:
        """Return whether to stop immediately; calls the listener as :meth:`over` does.

        True if the user asked to stop, or if :meth:`stop` was called. Without a work limit, also
        true if the time is up, if the best schedule is proven optimal, or if it is proven that no
        schedule costs less than ``beat``.
        """
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
        """Whether the time or work limit is used up, or the user asked to stop.

        Unlike :meth:`over`, this is not True merely because the best schedule is proven optimal.
        """
        self.interrupted()
        return self._told_to_stop or self.time() or self.work()

    @property
    def ended(self) -> bool:
        """Whether to abandon a worker that is still running.

        True if the user asked to stop. Without a work limit, also true if the solve is interrupted
        and a method other than :data:`.progress.FALLBACK` has found the best schedule. Workers may
        notice the interrupt late: compiling kernels takes seconds at their first use, and ordering
        very many ops takes long.
        """
        self.interrupted()
        timed_out = not self.limited and self.interrupt()
        return self._told_to_stop or (timed_out and self.built)

    @property
    def share_left(self) -> float:
        """The unused share of the time or work limit, from 0 to 1; 1 if there is no limit."""
        return min(self.time.share_left, 1 - self.work.used / self._options.ops)

    def resume(self, seconds: float) -> None:
        """Continue the solve for ``seconds`` from now. With a work limit this does nothing."""
        if not self.limited:
            self.time = TimeLimit(seconds)
            self.interrupt.put(self._told_to_stop)

    def stop(self) -> None:
        """Stop all threads of the solve until :meth:`resume` is called."""
        self.interrupt.put()

    def budget(self, share: float = 1.0, seconds: float = inf) -> Budget:
        """A budget that starts now: ``share`` of the time left, or ``seconds`` if that is less.

        With a work limit, the budget is ``share`` of the simulated ops that the running worker has
        left before the next worker's turn, or the number of ops that take about ``seconds`` if that
        is less.
        """
        if self.limited:
            ops = min(seconds * OPS_A_SECOND, share * self.work.left)
            return Budget(ops=ops, interrupt=self.interrupt)
        return Budget(min(seconds, share * self.time.left), interrupt=self.interrupt)

    @property
    def state(self) -> FoundOrder:
        return FoundOrder(self.order, self.pairs, self.cost, self.method)

    @state.setter
    def state(self, found: FoundOrder) -> None:
        self.order, self.pairs, self.cost, self.method = found

    def part(self, share: float) -> float:
        """The number of simulated ops in this ``share`` of the work limit.

        Without a work limit, it is the number of ops that take about as long as ``share`` of the
        time left.
        """
        return share * (self._options.ops if self.limited else self.time.left * OPS_A_SECOND)

    def found(self) -> tuple[Order, Pairs, float]:
        """The best order, its pairs and its cost. An order must have been found before."""
        with self._lock:
            assert self.order is not None
            return self.order, self.pairs, self.cost

    def offer(
        self, order: Order, method: str, cost: float | None = None, pairs: Pairs = ()
    ) -> bool:
        """Store ``order`` and ``pairs`` if they cost less than the best; return whether they do.

        ``order``: one array of packed ops per rank; it must fit in memory. ``pairs``: its pairs.
        ``method``: the name of the method that found it. ``cost``: the cost; if it is None, the
        order is simulated to find it.
        """
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
        """Replace the best schedule by ``schedule``, even if that costs more.

        ``schedule``: a schedule that streams weights. ``cost``: its cost, or its steady step if
        ``bound`` is a bound on the steady step.
        """
        with self._lock:
            self.order, self.transfers, self.cost = schedule.order, schedule.transfers, cost
            self.method = schedule.known_report.method
        self._changed()

    def raise_bound(self, bound: Bound) -> None:
        """Replace the bound by ``bound`` if that is higher, otherwise do nothing."""
        with self._lock:
            if not bound.value > self.bound.value:
                return
            self.bound = bound
        self._changed()

    def schedule(self, solver: str, seed: int, bound: Bound | None = None) -> Schedule:
        """The best schedule, with its timing and a report that contains ``solver`` and ``seed``.

        An order must have been found before. ``bound``: a lower bound on the objective, needed only
        if the incumbent's own bound is about the steady step.
        """
        with self._lock:
            order, method, known = self.order, self.method, bound or self.bound
            pairs, transfers = self.pairs, self.transfers
        assert order is not None
        found = timed(Schedule(self.problem, order, transfers, pairs=pairs))
        cost = objective_cost(found)
        # rounding may put a valid bound slightly above an equal cost; more means a wrong proof
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

    def _cost(self, order: Order, pairs: Pairs = ()) -> float:
        if any(pairs) or pulled(order):
            return objective_cost(Schedule(self.problem, order, pairs=pairs))
        # a simulator with its own arrays, as other threads offer orders, too
        return Simulator(self.problem, offsets_of(order), self._costs).cost(np.concatenate(order))

    def _changed(self) -> None:
        """Call the listener, or have the thread that created the incumbent call it soon.

        Only that thread may call the listener. Without a work limit, this method also ends the
        solve if the bound proves that no better schedule exists, or none that costs less than
        ``beat``.
        """
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
