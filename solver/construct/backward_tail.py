"""Rebuild the end of a schedule backwards in time, from its last ops.

If memory is small, a rank's last F is late, and the cost is at least the time that this F's
microbatch takes from there to the end (a cycle of :mod:`..bounds.moments`). A schedule attains that
bound if the microbatch never waits on this *path*: through the F's up to the last stage, and
through the B's back to stage 0. Forwards in time, it is not known which op will be on it.
Backwards, the path is placed first, and the other ops go around it.

Backwards, a microbatch runs W and B from the first stage to the last, then its F's. W takes M_W, B
takes the rest of M_B, and F releases M_B. A free rank runs the last op of the old order that is
ready. But it skips an op that would delay one on the path. It also skips an op if one that comes
later in the old order will be ready within ``patience`` times the duration of the skipped op.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.cost_tables import Costs, of_kind, of_pair
from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import (
    KIND_MASK,
    FloatArray,
    IntArray,
    OpKind,
    fields_of,
    offsets_of,
    split_backwards,
)
from pipeloom.ir.model.problem import Objective, Problem

from ..core.incumbent import Incumbent
from ..core.kernels import CostArrays, fields
from ..core.methods import Method
from ..core.tolerances import ROUNDING

_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))
PATIENCE = 0.75
AHEAD = 200  # maximum number of ops of a rank among which it chooses the next one
BACKWARDS_OP = 20  # work to place one op backwards, in simulated ops


@kernel
def _choose(  # noqa: PLR0917
    order: IntArray,
    first: int,  # first..last: the rank's ops, some of which may have been placed
    last: int,
    used: npt.NDArray[np.bool_],  # whether each op has been placed
    done: FloatArray,  # (3, S, M) when each op is done, infinite if it has not been placed
    now: float,
    begins: float,  # the time at which the rank starts, which is its end in the schedule
    clear: float,  # the time of the rank's next op on the path
    held: float,
    limit: float,
    way: FloatArray,
    costs: CostArrays,
    patience: float,
    same: float,
) -> tuple[int, float]:
    """Choose the op that a rank runs at time ``now``, where time runs backwards.

    Returns the op's index in ``order``, or -1 if the rank runs no op now, and the time at which the
    rank must choose again (infinite if it must wait for another rank's op to be placed). ``way``:
    when each op on the path can run at the earliest; infinite for ops that are not on the path.
    ``patience``: as in :class:`TailBuilder`. ``same``: the difference up to which times count as
    equal.
    """
    durations, _, into_f, into_b, m_b, m_w, _ = costs
    later, sooner, seen = clear if clear > now + same else np.inf, np.inf, 0
    for i in range(last, first - 1, -1):
        if used[i]:
            continue
        seen += 1
        if seen > AHEAD:
            break
        kind, s, j = fields(order[i])
        ready, needed = begins, of_pair(m_b, s, j)  # a W must leave room for its B
        if kind == _B:
            ready, needed = done[_W, s, j], needed - of_pair(m_w, s, j)
            if s > 0:
                ready = max(ready, done[_B, s - 1, j] + into_b[s - 1, j])
        elif kind == _F:
            ready, needed = done[_B, s, j], -np.inf
            if s + 1 < into_f.shape[0]:
                ready = max(ready, done[_F, s + 1, j] + into_f[s + 1, j])
        if held + needed > limit:
            continue
        on_way = way[i] < np.inf
        ready = max(ready, way[i]) if on_way else ready
        if ready <= now + same:
            took = of_kind(durations, kind, s, j)
            aside = (now + took <= clear + same or now > clear + same) and (
                now + patience * took <= sooner + same
            )
            if on_way or aside:
                return i, now
        else:
            later = min(later, ready)
            sooner = sooner if on_way else min(sooner, ready)
    return -1, later


@kernel
def build_backwards(  # noqa: PLR0917
    order: IntArray,  # (N,) packed ops, rank after rank
    first: IntArray,  # (P,) index of the first op of each rank that is rebuilt
    stop: IntArray,  # (P,) end of each rank's ops
    begins: FloatArray,  # (P,) the time at which each rank starts: its end in the schedule
    way: FloatArray,  # (N,) earliest time of each op on the path; infinite for other ops
    costs: CostArrays,
    patience: float,
    same: float,
    out: IntArray,  # (N,) out: the order, changed from `first` to `stop`
) -> bool:
    """Write an order to ``out`` in which each rank's ops ``first`` to ``stop`` - 1 are rebuilt.

    Time runs backwards: it is minus the time in the schedule. Returns whether the order is
    complete; it is not if at some point none of the remaining ops can be placed, for instance for
    lack of memory.
    """
    durations, owner, into_f, into_b, m_b, m_w, limit = costs
    ranks = len(first)
    clock, free, held = begins.copy(), begins.copy(), np.zeros(ranks)
    done, used = np.full((3, *owner.shape), np.inf), np.zeros(len(order), dtype=np.bool_)
    # by rank, indices of the next op in `order`, of the next op on the path, and of the end of the
    # free part of `out`
    last, near, at = stop - 1, stop - 1, stop.copy()
    left = int((stop - first).sum())
    while left > 0:
        r = int(np.argmin(clock))
        now = clock[r]
        if now == np.inf:
            return False
        while last[r] >= first[r] and used[last[r]]:
            last[r] -= 1
        while near[r] >= first[r] and (used[near[r]] or way[near[r]] == np.inf):
            near[r] -= 1
        clear = way[near[r]] if near[r] >= first[r] else np.inf
        i, clock[r] = _choose(
            order, first[r], last[r], used, done, now, begins[r], clear, held[r], limit[r], way,
            costs, patience, same,
        )  # fmt: skip
        if i < 0:
            continue
        kind, s, j = fields(order[i])
        used[i], left, at[r] = True, left - 1, at[r] - 1
        out[at[r]] = order[i]
        now += of_kind(durations, kind, s, j)
        done[kind, s, j] = clock[r] = free[r] = now
        wakes = -1
        if kind == _W:
            held[r] += of_pair(m_w, s, j)
        elif kind == _B:
            held[r] += of_pair(m_b, s, j) - of_pair(m_w, s, j)
            if s + 1 < len(owner):
                wakes, now = owner[s + 1, j], now + into_b[s, j]
        else:
            held[r] -= of_pair(m_b, s, j)
            if s > 0:
                wakes, now = owner[s - 1, j], now + into_f[s, j]
        if wakes >= 0 and wakes != r:
            clock[wakes] = min(clock[wakes], max(now, free[wakes]))
    return True


class TailBuilder:
    """A method that rebuilds the end of the best order backwards in time, once per rank and round.

    Each rebuild is for one F: its microbatch gets a path without waits from this F to the end, and
    all ops that start no earlier than this F are placed around the path. A round rebuilds once for
    the last F of each rank. If the best cost is the same as in the previous round, the round draws
    an F and a ``patience`` at random for each rebuild instead: a rank skips an op if one that comes
    later in the old order will be ready within ``patience`` times the skipped op's duration.
    """

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._costs, self._rng = Costs.of(problem), rng
        self._period = problem.objective is Objective.PERIOD
        self._cost = np.inf

    @property
    def able(self) -> bool:
        return True

    def round(self, best: Incumbent) -> None:
        """Rebuild the end of the best order once per rank; offer each new order to ``best``."""
        assert best.order is not None
        rows = tuple(map(split_backwards, best.order))
        self._order, self._offsets = np.concatenate(rows), offsets_of(rows)
        simulator = Simulator(best.problem, self._offsets, self._costs)
        known, self._cost = best.cost >= self._cost, best.cost
        simulator.run(self._order)
        self._starts = simulator.start.copy()
        for place, patience in self._anywhere() if known else self._last_forwards():
            built = self._built(place, patience, best)
            if built is not None:
                rows = tuple(np.split(built, self._offsets[1:-1]))
                best.offer(rows, Method.TAIL, simulator.cost(built))
            if best.over():
                return

    def _last_forwards(self) -> Iterator[tuple[int, float]]:
        """Yield the index of the last F of each rank, the earliest of these F's first.

        The index is that in the array of all ops. It is paired with the patience to use,
        :data:`PATIENCE`.
        """
        forwards = self._order & KIND_MASK == _F
        rows = [a + np.flatnonzero(forwards[a:b]) for a, b in pairwise(self._offsets)]
        last = np.array([row[-1] for row in rows if len(row)])
        for place in last[np.argsort(self._starts[last], kind="stable")].tolist():
            yield place, PATIENCE

    def _anywhere(self) -> Iterator[tuple[int, float]]:
        for _ in pairwise(self._offsets):
            forwards = np.flatnonzero(self._order & KIND_MASK == _F)
            yield int(self._rng.choice(forwards)), self._rng.uniform()

    def _built(self, place: int, patience: float, best: Incumbent) -> IntArray | None:
        """Return the order after all ops that start no earlier than a given F have been rebuilt.

        The order is one array of packed ops, rank after rank. ``place``: the index of the F in the
        best order, an array of the same kind. ``patience``: as in :class:`TailBuilder`. Returns
        None if the rebuilt order is incomplete, because at some point no remaining op could be
        placed.
        """
        starts, built = self._starts, self._order.copy()
        rows = [(a, starts[a:b]) for a, b in pairwise(self._offsets)]
        first = np.array([a + np.searchsorted(row, starts[place]) for a, row in rows])
        begins = np.array([-row[0] if self._period and len(row) else 0.0 for _, row in rows])
        way, same = self._way(place, begins), ROUNDING * float(starts.max())
        best.work.spend(int(len(built) + BACKWARDS_OP * (self._offsets[1:] - first).sum()))
        done = build_backwards(
            self._order, first, self._offsets[1:], begins, way, CostArrays.of(self._costs),
            patience, same, built,
        )  # fmt: skip
        return built if done else None

    def _way(self, place: int, begins: FloatArray) -> FloatArray:
        """Return when each op on the path of one microbatch can run at the earliest, (N,).

        Time runs backwards; for ops that are not on the path the result is infinite. The path
        begins with the F at index ``place``, goes through the F's up to the last stage, and through
        the B's back to stage 0. ``begins``: when each rank starts, backwards in time, (P,).
        """
        c, way = self._costs, np.full(len(self._order), np.inf)
        kinds, stages, microbatches = fields_of(self._order)
        stage, j = int(stages[place]), int(microbatches[place])
        own = np.flatnonzero(microbatches == j)
        places, lengths = np.empty((3, len(c.owner)), dtype=np.int64), np.empty((3, len(c.owner)))
        places[kinds[own], stages[own]] = own
        lengths[kinds[own], stages[own]] = c.of_ops(self._order[own])
        time = -np.inf
        for s in range(len(c.owner)):
            time = max(time, begins[c.owner[s, j]] + lengths[_W, s])
            way[places[_B, s]] = time
            time += lengths[_B, s] + c.into_b[s, j]
        for s in reversed(range(stage, len(c.owner))):
            way[places[_F, s]] = time
            time += lengths[_F, s] + c.into_f[s, j]
        return way
