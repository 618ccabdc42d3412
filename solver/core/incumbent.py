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
"""For each rank, the positions in its order of F's that form pairs.

Such an F runs at the same time as the BW that follows it in the order.
"""
SLICE = 10_000_000  # simulated ops of one slice of search, which take about 0.2 s
SLICES = 16  # minimum number of slices in a work limit


class FoundOrder(NamedTuple):
    """An order: the packed ops of each rank, its pairs, its cost, and the method that found it."""

    order: Order | None
    pairs: Pairs
    cost: float
    method: str | None


class Incumbent:
    """The best order offered so far, and the best lower bound, of one solve.

    :meth:`over` tells when to stop: the order is proven optimal, time or work is used up, or the
    user asked to stop. Any thread may offer orders and bounds and call :meth:`over`. ``progress``
    and ``should_stop`` of the options are called only in the thread that created the incumbent.
    ``interrupt`` is a flag that kernels read; it is set when the solve is over.

    With a ``work_limit`` a solve is repeatable: nothing depends on the clock (``time_limit`` is
    ignored), and workers run in turn (:mod:`.worker_threads`). ``work`` is then the limit of the
    worker that runs.

    ``slice``: simulated ops of one slice of search, fewer if the work limit is small, so that every
    method gets some slices. ``beat``: the cost of a schedule known elsewhere; once the bound
    reaches it, the solve ends. ``lacking``: why no schedule found fits in memory, as long as none
    does.
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
        """Whether there is a schedule that another method than :data:`.progress.FALLBACK` found."""
        return is_built(self.method)

    @property
    def closed(self) -> bool:
        """Whether the best schedule is proven optimal: its cost equals the bound, within CLOSED."""
        return self.order is not None and self.cost - self.bound.value <= CLOSED * self.cost

    @property
    def beaten(self) -> bool:
        """Whether there is a schedule, and no schedule can cost less than ``beat``."""
        return self.order is not None and self.bound.value >= self.beat * (1 - CLOSED)

    def over(self) -> bool:
        """Whether to stop. Also calls the listener after changes, and about once a second."""
        return self.interrupted() or self.closed or self.work()

    def interrupted(self) -> bool:
        """Whether to stop at once, even if the current share of a work limit is not used up.

        Also calls the listener, as :meth:`over` does.
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
        """Whether time or work is used up or the user asked to stop.

        Unlike :meth:`over` it does not count that the best schedule is proven optimal.
        """
        self.interrupted()
        return self._told_to_stop or self.time() or self.work()

    @property
    def ended(self) -> bool:
        """Whether to abandon work that is still running: the user asked to stop, or time is up.

        With a work limit only the former counts. The time limit does not count while the only
        schedule is :data:`.progress.FALLBACK`: compiling kernels takes seconds at their first use,
        and it takes long to order very many ops.
        """
        self.interrupted()
        timed_out = not self.limited and self.interrupt()
        return self._told_to_stop or (timed_out and self.built)

    @property
    def share_left(self) -> float:
        """The share of the time or work limit that is left, 0 to 1; 1 if there is no limit."""
        return min(self.time.share_left, 1 - self.work.used / self._options.ops)

    def resume(self, seconds: float) -> None:
        """Continue the solve for ``seconds`` more from now. A work limit is not extended."""
        if not self.limited:
            self.time = TimeLimit(seconds)
            self.interrupt.put(self._told_to_stop)

    def stop(self) -> None:
        """End the solve for all threads, until it is resumed."""
        self.interrupt.put()

    def budget(self, share: float = 1.0, seconds: float = inf) -> Budget:
        """A budget that starts now, with a share of the time left, at most ``seconds``.

        If work is limited, the budget has a share of the work that this worker has left until the
        next worker runs.
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
        """A share of the work limit, in simulated ops.

        Without a work limit, a share of the simulated ops that the time left allows.
        """
        return share * (self._options.ops if self.limited else self.time.left * OPS_A_SECOND)

    def found(self) -> tuple[Order, Pairs, float]:
        """The best order, its pairs and its cost. There must be one."""
        with self._lock:
            assert self.order is not None
            return self.order, self.pairs, self.cost

    def offer(
        self, order: Order, method: str, cost: float | None = None, pairs: Pairs = ()
    ) -> bool:
        """Store ``order`` and ``pairs`` if they cost less than the best. Returns whether they do.

        ``order``: one array of packed ops per rank; it must fit in memory. ``method``: the label of
        the method that found it. ``cost``: its cost if known; otherwise it is simulated.
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
        """Store a schedule with streamed weights, even if it costs no less than the best one.

        ``cost``: its cost by the objective, or by the steady step if ``bound`` is about that.
        """
        with self._lock:
            self.order, self.transfers, self.cost = schedule.order, schedule.transfers, cost
            self.method = schedule.known_report.method
        self._changed()

    def raise_bound(self, bound: Bound) -> None:
        """Store ``bound`` if it is higher than the best bound."""
        with self._lock:
            if not bound.value > self.bound.value:
                return
            self.bound = bound
        self._changed()

    def schedule(self, solver: str, seed: int, bound: Bound | None = None) -> Schedule:
        """The best schedule with its timing and a report, which names ``solver`` and ``seed``.

        There must be a schedule. ``bound``: the bound on the objective, if schedules were compared
        by another cost.
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
        """Call the listener, or leave that to the thread that created the incumbent.

        Also ends the solve if the bound shows that nothing better can be found.
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
