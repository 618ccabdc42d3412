"""Make schedules that need too much memory fit, by recomputation and offload.

With more memory the optimizer finds a schedule without remat and with little idle time. Its order
is kept. Where an op does not fit, a microbatch that waits for its B is recomputed or offloaded::

    more memory   F0 F1 F2 F3 B0 W0 F4 ...
    as it fits    F0 F1 F2 O0 F3 L0 B0 W0 R1 ...

The times of the original schedule give an estimate of the cost: with offload the rank waits until
the copy to the host has ended, and later until the copy back has ended; an R takes its time. The
microbatch is chosen that costs least per memory and time that it frees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import OFFLOADED, RECOMPUTED, STAYS, changes, held
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.ops import Op, OpKind, pack, split_backwards, unpack
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..bounds.feasibility import needs
from ..core.options import Order
from ..core.relaxations import offloadable, plain, recomputable
from ..core.tolerances import ROUNDING

FARTHEST = 6  # an L is moved before at most this many ops of its rank
MORE = (1.25, 1.6, 2.2, 3.5)  # multiples of the memory limits for which to search schedules
LOST = ((1.0, 1.0), (0.25, 1.0), (1.0, 0.25), (1.0, np.inf), (np.inf, 1.0))
"""Pairs of weights: of the time lost by R's and early W's, and of the time lost by waiting for
copies. If a weight is infinite, nothing is done that would lose such time."""
# fixed cost of a recomputation or offload, in mean T_F's (1 if these are 0), so that few are used
LITTLE = 0.1

_Pair = tuple[int, int]  # stage and microbatch


def roomier(problem: Problem) -> Iterator[Problem]:
    """Yield the problem without remat, with ever larger memory limits.

    Each of the limits is large enough for at least one schedule.
    """
    bare = plain(problem)
    least, given = needs(bare), np.array(problem.memory_limit)
    seen = set()
    for more in MORE:
        limit = tuple(np.maximum(given * more, least).tolist())
        if limit not in seen:
            seen.add(limit)
            yield replace(bare, memory_limit=limit)


def fitted(problem: Problem, rows: Order) -> Iterator[Order]:
    """Yield orders that fit in memory, made from the order ``rows`` by recomputation and offload.

    ``rows`` has neither recomputation nor offload. Each pair of weights in :data:`LOST` gives one
    order, or none if the ops of some rank cannot be made to fit.
    """
    rows = tuple(map(split_backwards, rows))
    timing = simulate(Schedule(plain(problem), rows))
    starts = [row.tolist() for row in timing.start]
    for again, out in LOST:
        fits = _Fit(problem, again, out)
        made = [fits.rank(r, unpack(row), starts[r]) for r, row in enumerate(rows)]
        if all(row is not None for row in made):
            yield tuple(pack(row) for row in made if row is not None)


class _Fit:
    """A procedure that chooses, rank by rank, the microbatches to recompute or offload.

    ``again``: the weight of the time lost by R's and by early W's. ``out``: the weight of the time
    lost by waiting for copies to or from the host.
    """

    def __init__(self, problem: Problem, again: float, out: float) -> None:
        self._problem, self._costs = problem, Costs.of(problem)
        self._lost_again, self._lost_out = again, out
        self._little = LITTLE * (float(self._costs.durations[OpKind.F].mean()) or 1.0)
        self._recomputable = recomputable(problem)
        self._offloadable = offloadable(problem)

    def rank(self, rank: int, row: list[Op], starts: list[float]) -> list[Op] | None:
        """Return the rank's ops with R's, O's and L's added such that they fit in memory.

        Returns None if they cannot be made to fit. ``row``: the rank's ops without remat.
        ``starts``: the start times of these ops in the schedule without remat.
        """
        costs = self._costs
        self._limit = self._problem.memory_limit[rank] * (1 + ROUNDING)
        self._held, self._channels = 0.0, [-np.inf, -np.inf]
        # for each microbatch that is held: end of F and start of B in the schedule without remat
        self._here: dict[_Pair, tuple[float, float]] = {}
        self._choice: dict[_Pair, int] = {}
        self._weights: dict[_Pair, float] = {}
        self._ops: list[Op] = []
        times = dict(zip(row, starts, strict=True))
        for op, now in times.items():
            s, pair = op.stage, (op.stage, op.microbatch)
            fits = True
            if op.kind is OpKind.F:
                until = times[replace(op, kind=OpKind.B)]
                self._here[pair] = now + float(costs.durations[OpKind.F, s]), until
                fits = self._take(float(costs.m_b[s]), now, pair)
            elif op.kind is OpKind.B:
                self._here.pop(pair, None)
                fits = self._back(op, now)
                self._held -= float(costs.m_b[s] - costs.m_w[s])
                self._weights[pair] = times[replace(op, kind=OpKind.W)]
            elif pair in self._weights:
                self._run_w(pair)
            if not fits:
                return None
            if op.kind is not OpKind.W:
                self._ops.append(op)
        return brought_forward(self._with_recomputed(), self._problem, self._limit)

    def _run_w(self, pair: _Pair) -> None:
        del self._weights[pair]
        self._held -= float(self._costs.m_w[pair[0]])
        self._ops.append(Op(OpKind.W, *pair))

    def _with_recomputed(self) -> list[Op]:
        result = []
        for op in self._ops:
            choice = self._choice.get((op.stage, op.microbatch), STAYS)
            if op.kind is OpKind.B and choice == RECOMPUTED:
                result.append(returned(op, choice))
            result.append(op)
        return result

    def _back(self, op: Op, now: float) -> bool:
        """Restore the activations for a B if they were released; return whether they fit in memory.

        Other microbatches are recomputed or offloaded for this, if necessary. If the activations
        were never released, the result is True. ``op``: the B. ``now``: its start.
        """
        choice = self._choice.get((op.stage, op.microbatch), STAYS)
        if choice == STAYS:
            return True
        rest = float(self._costs.m_b[op.stage] - self._costs.kept[choice, op.stage])
        fits = self._take(rest, now, None)
        if choice == OFFLOADED:
            self._ops.append(returned(op, choice))
        return fits

    def _take(self, memory: float, now: float, new: _Pair | None) -> bool:
        """Occupy ``memory`` at time ``now``; return whether it can be made to fit.

        Until it fits, microbatches are recomputed or offloaded, or waiting W's run early, whatever
        is cheapest. ``new``: the (stage, microbatch) whose F runs now, which may be recomputed but
        not offloaded; None if no F runs.
        """
        self._held += memory
        while self._held > self._limit:
            ways = [
                (self._cost(pair, choice, now), choice == OFFLOADED, choice, pair)
                for pair in self._here
                for choice in self._more(pair, new)
            ]
            ways += [
                (self._early(pair, at, now), False, STAYS, pair)
                for pair, at in self._weights.items()
            ]
            cost, _, choice, pair = min(ways, default=(np.inf, False, STAYS, (0, 0)))
            if cost == np.inf:
                return False
            if choice == STAYS:
                self._run_w(pair)
            else:
                self._apply(pair, choice)
        return True

    def _more(self, pair: _Pair, new: _Pair | None) -> Iterator[int]:
        """Yield the choices (RECOMPUTED, OFFLOADED) by which a microbatch can free memory.

        Nothing is yielded if the microbatch is to be recomputed or offloaded already. ``pair``: its
        stage and number. ``new``: the stage and number of the microbatch whose F runs now, which
        cannot be offloaded; None if no F runs.
        """
        if pair in self._choice:
            return
        if self._recomputable[pair[0]] and self._freed(pair, RECOMPUTED) > 0:
            yield RECOMPUTED
        if self._offloadable[pair[0]] and pair != new:
            yield OFFLOADED

    def _apply(self, pair: _Pair, choice: int) -> None:
        s, (since, until) = pair[0], self._here[pair]
        self._held -= self._freed(pair, choice)
        self._choice[pair] = choice
        if choice == OFFLOADED:
            del self._here[pair]
            took = float(self._costs.durations[OpKind.O, s])
            self._channels[0] = max(since, self._channels[0]) + took
            self._channels[1] = max(until, self._channels[1] + took)
            self._ops.append(Op(OpKind.O, *pair))

    def _early(self, pair: _Pair, at: float, now: float) -> float:
        lost = float(self._costs.durations[OpKind.W, pair[0]])
        size = float(self._costs.m_w[pair[0]])
        return self._rate(self._lost_again, lost, at - now, size)

    def _cost(self, pair: _Pair, choice: int, now: float) -> float:
        costs, s, (since, until) = self._costs, pair[0], self._here[pair]
        weight = self._lost_again
        if choice == RECOMPUTED:
            lost, free = float(costs.durations[OpKind.R, s]), until - now
        else:
            weight = self._lost_out
            took = float(costs.durations[OpKind.O, s])
            gone = max(since, self._channels[0]) + took
            back = max(gone, self._channels[1]) + took
            lost = max(0.0, gone - now) + max(0.0, back - until)
            free = until - took - now
        return self._rate(weight, lost, free, self._freed(pair, choice))

    def _freed(self, pair: _Pair, choice: int) -> float:
        """Return the memory that a microbatch frees on a stage by ``choice``.

        ``pair``: the stage and the microbatch. ``choice``: RECOMPUTED or OFFLOADED.
        """
        return float(self._costs.m_b[pair[0]] - self._costs.kept[choice, pair[0]])

    def _rate(self, weight: float, lost: float, free: float, size: float) -> float:
        """Return the price of freeing memory: time lost, per memory freed and per time it is free.

        ``lost``: the time lost. It is multiplied by ``weight``, and a small constant is added.
        ``free``: how long the memory is free. ``size``: how much memory is freed; if it is not
        positive, the price is infinite.
        """
        if size <= 0:
            return float("inf")
        counted = weight * lost if lost > 0 else 0.0
        return (self._little + counted) / (max(free, 1e-6 * self._little) * size)


def returned(op: Op, choice: int) -> Op:
    """Return the op that restores the activations for ``op``, which is a B.

    It is an L if ``choice`` is OFFLOADED, otherwise an R.
    """
    return replace(op, kind=OpKind.L if choice == OFFLOADED else OpKind.R)


def brought_forward(ops: list[Op], problem: Problem, limit: float) -> list[Op]:
    """Return a rank's ops with each L moved as early as memory allows.

    An L moves before at most :data:`FARTHEST` ops, so that the activations are back in time for
    their B. ``limit``: the rank's memory limit. ``ops`` is changed in place.
    """
    if not any(op.kind is OpKind.L for op in ops):
        return ops
    kept = held(problem, (pack(ops),))[0].tolist()
    rests = changes(Costs.of(problem))[OpKind.L].tolist()
    for at, op in enumerate(ops):
        if op.kind is not OpKind.L:
            continue
        rest, out = rests[op.stage], replace(op, kind=OpKind.O)
        for place in range(at, max(1, at - FARTHEST), -1):
            before = kept[place - 2] if place > 1 else 0.0
            if ops[place - 1] == out or before + rest > limit:
                break
            ops[place - 1], ops[place] = ops[place], ops[place - 1]
            kept[place - 1] = before + rest
    return ops
