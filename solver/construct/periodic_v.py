"""Periodic V schedules: each microbatch repeats what the one before did, an interval T later.

On a rank the six ops of a microbatch, F, B and W of both stages, then form a *cycle* of length T;
the rest of T is idle time in one place. A cycle fixes, modulo T, the four times at which a
microbatch passes the rank: with its F's on the way down the ranks and up, and with its B's on the
way down and up. From one rank to the next a microbatch waits until the cycle of that rank reaches
its op, and holds memory meanwhile. So for a given T, the cycles that need the least memory on all
ranks together are a shortest path. It goes rank by rank from the last rank, where the microbatch
turns round, to rank 0::

    rank 0      x0 . . . y0 u0 . . . . v0        x, y: F of the stage on the way down, and up
    rank 1         x1 . y1    u1 . . v1          u, v: B of the stage on the way up, and down
    rank 2            x2 y2      u2 v2

With equal times, this gives V-Min (Qi et al., 2024) for the minimum memory, and V-Half if T equals
the work per microbatch, so that no rank idles. For other limits and for unequal times there is no
published schedule.

Each rank has a limit of its own, on the peak over the cycle. So the memory of each rank has a
weight in the length of the path: ranks that exceed their limit get a higher weight in the next
iteration, as in a Lagrangian relaxation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Self

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import MICROBATCH_SHIFT, STAGE_SHIFT, FloatArray, IntArray, OpKind
from pipeloom.ir.model.problem import Problem

from ..core.options import Order

_KINDS = tuple(map(int, (OpKind.F, OpKind.F, OpKind.B, OpKind.B, OpKind.W, OpKind.W)))
_CYCLES = np.array([(0, *rest) for rest in permutations(range(1, 6))])
_SAME = 1e-6  # relative to T: closer times count as equal


@dataclass(frozen=True, slots=True, eq=False)
class PeriodicV:
    """The times and sizes of a problem with a V of stages, by rank.

    x, y, u, v are the ops in the module's diagram. ``lengths``: the durations of x, y, u, v and of
    the W's that follow u and v, (P, 6). ``ways``: the starts of x, y, u and v of a microbatch that
    never waits, relative to the start of its first F, (P, 4). ``m_b``, ``m_w``: M_B and M_W of the
    rank's stage on the way down and of its stage on the way up, (P, 2).
    """

    lengths: FloatArray
    ways: FloatArray
    m_b: FloatArray
    m_w: FloatArray

    @classmethod
    def of(cls, problem: Problem) -> Self:
        costs, ranks = Costs.of(problem), problem.ranks
        f, b, w = costs.durations[:3]
        down, up = np.arange(ranks), 2 * ranks - 1 - np.arange(ranks)
        lengths = np.stack([f[down], f[up], b[up], b[down], w[up], w[down]], axis=1)
        there = np.append(0.0, np.cumsum(f[:-1] + costs.into_f[1:, 0]))
        back = np.append(np.cumsum((b[1:] + costs.into_b[:-1, 0])[::-1])[::-1], 0.0)
        back += there[-1] + f[-1]
        ways = np.stack([there[down], there[up], back[up], back[down]], axis=1)
        both = np.stack([down, up], axis=1)
        return cls(lengths, ways, costs.m_b[both], costs.m_w[both])

    @property
    def work(self) -> float:
        """The work of the busiest rank per microbatch, which is the minimum interval T."""
        return float(self.lengths.sum(axis=1).max())

    def starts(self, interval: float, weights: FloatArray) -> tuple[FloatArray, int]:
        """Return the starts of the six ops of microbatch 0 on each rank, (P, 6), by shortest path.

        The starts minimize the sum over the ranks of weight times memory-time (memory times the
        time for which it is held). ``weights``: the weight of each rank, (P,). The second result is
        the number of pairs of cycles that were compared, a measure of effort.
        """
        ranks = len(self.ways)
        down, up = (weights[:, None] * self.m_b).T
        near, far = down.cumsum(), down.sum() + up.sum() - up.cumsum()
        every: list[FloatArray] = []
        steps: list[tuple[IntArray, FloatArray]] = []
        pairs, costs = 0, np.zeros(0)
        for rank in reversed(range(ranks)):
            cycles, late = _cycles(self.lengths[rank], interval, self.m_w[rank])
            if rank == ranks - 1:
                waits = _turn(cycles, self.ways[rank], interval)
                costs, came = down.sum() * waits.sum(axis=1), np.arange(len(cycles))
            else:
                order = np.argsort(costs, kind="stable")
                ways = self.ways[rank] - self.ways[rank + 1]
                costs, came, waits, compared = _step(
                    costs[order], every[-1][order], cycles, ways, interval, near[rank], far[rank]
                )
                came, pairs = order[came], pairs + compared
            costs = costs + weights[rank] * late
            every.append(cycles)
            steps.append((came, waits))
        wait = _until(cycles[:, 2] - cycles[:, 1] - self.ways[0, 2] + self.ways[0, 1], interval)
        first = int((costs + (down.sum() + up.sum()) * wait).argmin())
        return self._followed(every[::-1], steps[::-1], first, float(wait[first]), interval), pairs

    def held(self, starts: FloatArray) -> FloatArray:
        """Return the memory-time of one microbatch on each rank, (P,).

        Memory-time is memory times the time for which it is held. ``starts``: the starts of the six
        ops of the microbatch on each rank, (P, 6).
        """
        ends = starts + self.lengths
        until_b, until_w = ends[:, [3, 2]] - starts[:, :2], (ends[:, 4:] - ends[:, 2:4])[:, ::-1]
        return np.asarray((self.m_b * until_b + self.m_w * until_w).sum(axis=1))

    def peaks(self, starts: FloatArray, interval: float) -> FloatArray:
        """Return the peak memory of each rank in the steady state, (P,).

        ``starts``: the starts of the six ops of microbatch 0 on each rank, (P, 6).
        """
        together = 2 + int((starts.max() - starts.min()) / interval)
        changes = np.hstack([self.m_b, (self.m_w - self.m_b)[:, ::-1], -self.m_w[:, ::-1]])
        found = np.empty(len(starts))
        for rank, order in enumerate(_in_order(starts, interval, together)):
            found[rank] = changes[rank][order % 6].cumsum().max()
        return found

    def _followed(
        self,
        cycles: list[FloatArray],
        steps: list[tuple[IntArray, FloatArray]],
        chosen: int,
        wait: float,
        interval: float,
    ) -> FloatArray:
        """Return the starts of the six ops on each rank, (P, 6), on one shortest path.

        ``cycles``: for each rank, the possible cycles. ``steps``: for each rank, two arrays with an
        entry for each of its cycles: the index of the next rank's cycle on the shortest path, and
        the waits between the two ranks. ``chosen``: the index of rank 0's cycle, with which the
        path ends. ``wait``: how long the microbatch waits on rank 0 between its last F and its
        first B there.
        """
        ranks = len(cycles)
        waits, own = np.zeros((ranks, 4)), np.zeros((ranks, 6))
        turn = np.zeros(2)
        for rank in range(ranks):
            came, waited = steps[rank]
            own[rank], found = cycles[rank][chosen], waited[chosen]
            if rank + 1 < ranks:
                waits[rank], chosen = found, int(came[chosen])
            else:
                turn = found
        # summed on the way down from rank 0
        below = np.vstack([np.zeros(4), waits[:-1].cumsum(axis=0)])
        above = waits[::-1].cumsum(axis=0)[::-1]  # summed on the way up from the last rank
        starts = np.concatenate([self.ways, np.zeros((ranks, 2))], axis=1)
        starts[:, 0] += below[:, 0]
        starts[:, 1] += below[-1, 0] + turn[0] + above[:, 1]
        starts[:, 2] += starts[0, 1] - self.ways[0, 1] + wait + below[:, 2]
        starts[:, 3] += starts[-1, 2] - self.ways[-1, 2] + turn[1] + above[:, 3]
        ends = starts[:, 2:4] + self.lengths[:, 2:4]
        starts[:, 4:] = ends + _until(own[:, 4:] - own[:, 2:4] - self.lengths[:, 2:4], interval)
        return starts


def periodic_order(starts: FloatArray, interval: float, microbatches: int) -> Order:
    """Return the packed ops of each rank if a microbatch starts every ``interval``.

    ``starts``: the starts of the six ops of microbatch 0 on each rank, (P, 6).
    """
    ranks, every = len(starts), np.arange(microbatches)[:, None] << MICROBATCH_SHIFT
    rows = []
    for rank, order in enumerate(_in_order(starts, interval, microbatches)):
        down, up = rank, 2 * ranks - 1 - rank
        ops = np.array((down, up, up, down, up, down)) << STAGE_SHIFT | np.array(_KINDS)
        rows.append((ops | every).ravel()[order])
    return tuple(rows)


def _in_order(starts: FloatArray, interval: float, microbatches: int) -> Iterator[IntArray]:
    """Yield for each rank the permutation that sorts its ops, six per microbatch, by start.

    The permutation consists of the indices 6 j + i, where op i is that of microbatch j, (6 M,).
    Times are rounded to integers, so that ops of zero duration have the same order in every
    interval. Arguments: as for :func:`periodic_order`.
    """
    later = np.rint(1 / _SAME) * np.arange(microbatches)[:, None]
    for own in np.rint(starts / (_SAME * interval)):
        yield np.argsort((own + later).ravel(), kind="stable")


def _cycles(lengths: FloatArray, interval: float, m_w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the cycles of a rank that can be best, and the memory-time of the waiting W's in each.

    A cycle is given by the starts of its six ops (x, y, u, v, then the W's of u and v) relative to
    that of x; the first result, (N, 6), is N cycles. All orders of the ops and all places of the
    idle time are tried; among cycles with the same starts of x, y, u and v, only the one with the
    lowest memory-time is kept. Memory-time, the second result, (N,), is the sum over both W's of
    M_W times the time from the end of B to the start of W. ``lengths``: the durations of the six
    ops. ``m_w``: M_W of the stages on the way down and up.
    """
    idle = max(0.0, interval - float(lengths.sum()))
    taken = lengths[_CYCLES][:, None] + idle * np.eye(6)
    ends = np.cumsum(taken, axis=2).reshape(-1, 6)
    orders = np.repeat(_CYCLES, 6, axis=0)
    starts = np.zeros_like(ends)
    np.put_along_axis(starts, orders[:, 1:], ends[:, :-1], axis=1)
    late = _until(starts[:, 4:] - starts[:, 2:4] - lengths[2:4], interval) @ m_w[::-1]
    starts, late = starts[by_late := np.argsort(late, kind="stable")], late[by_late]
    _, kept = np.unique(np.rint(starts[:, 1:4] / (_SAME * interval)), axis=0, return_index=True)
    return starts[kept], late[kept]


def _until(times: FloatArray, interval: float) -> FloatArray:
    """Return ``times`` modulo the interval, in the range from 0 to below the interval.

    A time that is less than a multiple of the interval by only a rounding error becomes 0.
    """
    found: FloatArray = np.mod(times + _SAME * interval, interval) - _SAME * interval
    return np.maximum(found, 0.0)


def _turn(cycles: FloatArray, ways: FloatArray, interval: float) -> FloatArray:
    """Return how long a microbatch waits on the last rank between its F's, and between its B's.

    The result has one row of these two waits for each of the rank's ``cycles``, (N, 2). ``ways``:
    the last rank's row of :attr:`PeriodicV.ways`.
    """
    own = cycles[:, [1, 3]] - cycles[:, [0, 2]] - ways[[1, 3]] + ways[[0, 2]]
    return _until(own, interval)


@kernel
def _step(  # noqa: PLR0917
    costs: FloatArray,  # (N,) costs of the next rank's cycles, ascending
    last: FloatArray,  # (N, 6) the cycles of the next rank, in the order of ``costs``
    cycles: FloatArray,  # (N', 6) the cycles of this rank
    ways: FloatArray,  # (4,) times of this rank minus those of the next, without waits
    interval: float,
    near: float,  # cost per unit of waiting of x and v
    far: float,  # cost per unit of waiting of y and u
) -> tuple[FloatArray, IntArray, FloatArray, int]:
    """Take one step of the shortest path, from the next rank's cycles to each cycle of this rank.

    Returns three arrays with an entry for each cycle of this rank: the lowest cost, (N',); the
    index of the next rank's cycle that attains it, (N',); and the waits of x, y, u and v between
    the two ranks, (N', 4). The fourth result is the number of pairs of cycles that were compared. A
    longer wait of x makes each of the other three waits shorter or longer by as much, modulo T. So
    the cost is lowest where one of the four waits is 0.
    """
    number, same, pairs = len(cycles), _SAME * interval, 0
    found, came = np.full(number, np.inf), np.zeros(number, dtype=np.int64)
    waits = np.zeros((number, 4))
    for i in range(number):
        for k in range(len(costs)):
            if costs[k] >= found[i]:
                break
            pairs += 1
            dy = cycles[i, 1] - last[k, 1] - ways[1] + ways[0]
            du = cycles[i, 2] - last[k, 2] - ways[2] + ways[0]
            dv = cycles[i, 3] - last[k, 3] - ways[3] + ways[0]
            for at in range(4):
                x = 0.0 if at == 0 else dy if at == 1 else du if at == 2 else dv
                x = max(0.0, (x + same) % interval - same)
                if costs[k] + near * x >= found[i]:
                    continue
                y = max(0.0, (dy - x + same) % interval - same)
                u = max(0.0, (x - du + same) % interval - same)
                v = max(0.0, (dv - x + same) % interval - same)
                cost = costs[k] + near * (x + v) + far * (y + u)
                if cost < found[i]:
                    found[i], came[i] = cost, k
                    waits[i, 0], waits[i, 1], waits[i, 2], waits[i, 3] = x, y, u, v
    return found, came, waits, pairs
