"""V schedules that repeat: each microbatch does what the one before did, an interval T later.

On a rank the six ops of a microbatch, F, B and W of both stages, then follow each other in a
*cycle* of length T; what does not fill it is idle time in one place. A cycle fixes the four times
at which the microbatch passes the rank, modulo T: down and up with F, down and up with B. From one
rank to the next a microbatch waits until the cycle there has come to its op, and is held for as
long. So the cycles of all ranks that hold the least memory for a given T are a shortest path, rank
by rank, from the one where the microbatch turns::

    rank 0      x0 . . . y0 u0 . . . . v0        x, y: F of the stage on the way down, and up
    rank 1         x1 . y1    u1 . . v1          u, v: B of the stage on the way up, and down
    rank 2            x2 y2      u2 v2

V-Min (Qi et al., 2024) is what comes out where memory is least, V-Half where nothing idles, for
equal times; in between, and for unequal ones, there is no published shape.

What a rank may hold is a limit of its own, and its most is held at some moment of the cycle. So
memory is weighed by rank: ranks that hold too much weigh more the next time, as in a Lagrangian
relaxation.
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
_SAME = 1e-6  # of T: times as near as this are the same, whatever was rounded


@dataclass(frozen=True, slots=True, eq=False)
class PeriodicV:
    """The arrays of a V, by rank.

    ``lengths``, (P, 6): of the ops x, y, u, v and of the W's of u and v. ``ways``, (P, 4): when a
    microbatch that never waits starts x, y, u and v, from its start. ``m_b``, ``m_w``, (P, 2): of
    the stage on the way down, and up.
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
        """The least T."""
        return float(self.lengths.sum(axis=1).max())

    def starts(self, interval: float, weights: FloatArray) -> tuple[FloatArray, int]:
        """When microbatch 0 starts the six ops on each rank, (P, 6), such that what ranks hold,
        weighed by ``weights``, (P,), is least; and the pairs of cycles that were compared."""
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
        """Memory that each rank holds of a microbatch, times time, (P,)."""
        ends = starts + self.lengths
        until_b, until_w = ends[:, [3, 2]] - starts[:, :2], (ends[:, 4:] - ends[:, 2:4])[:, ::-1]
        return np.asarray((self.m_b * until_b + self.m_w * until_w).sum(axis=1))

    def peaks(self, starts: FloatArray, interval: float) -> FloatArray:
        """The most that each rank holds at a time, of microbatches without end, (P,)."""
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
        """The starts on the path that ends with the cycle ``chosen`` of rank 0, where F's that have
        come up wait for so long before B's go down."""
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
        below = np.vstack([np.zeros(4), waits[:-1].cumsum(axis=0)])  # on the way down from rank 0
        above = waits[::-1].cumsum(axis=0)[::-1]  # on the way up from the last
        starts = np.concatenate([self.ways, np.zeros((ranks, 2))], axis=1)
        starts[:, 0] += below[:, 0]
        starts[:, 1] += below[-1, 0] + turn[0] + above[:, 1]
        starts[:, 2] += starts[0, 1] - self.ways[0, 1] + wait + below[:, 2]
        starts[:, 3] += starts[-1, 2] - self.ways[-1, 2] + turn[1] + above[:, 3]
        ends = starts[:, 2:4] + self.lengths[:, 2:4]
        starts[:, 4:] = ends + _until(own[:, 4:] - own[:, 2:4] - self.lengths[:, 2:4], interval)
        return starts


def periodic_order(starts: FloatArray, interval: float, microbatches: int) -> Order:
    """The packed ops of each rank."""
    ranks, every = len(starts), np.arange(microbatches)[:, None] << MICROBATCH_SHIFT
    rows = []
    for rank, order in enumerate(_in_order(starts, interval, microbatches)):
        down, up = rank, 2 * ranks - 1 - rank
        ops = np.array((down, up, up, down, up, down)) << STAGE_SHIFT | np.array(_KINDS)
        rows.append((ops | every).ravel()[order])
    return tuple(rows)


def _in_order(starts: FloatArray, interval: float, microbatches: int) -> Iterator[IntArray]:
    """Yields the places of each rank's ops, six of each microbatch, by when they start: in whole
    numbers, such that ops of no length follow each other in every interval as in the first."""
    later = np.rint(1 / _SAME) * np.arange(microbatches)[:, None]
    for own in np.rint(starts / (_SAME * interval)):
        yield np.argsort((own + later).ravel(), kind="stable")


def _cycles(lengths: FloatArray, interval: float, m_w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The starts of the six ops in each cycle, (N, 6), that of x being 0, and what W's hold until
    they run, times time, (N,). Of those with the same four times the one where that is least."""
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
    """How long it is until ``times``, modulo the interval."""
    found: FloatArray = np.mod(times + _SAME * interval, interval) - _SAME * interval
    return np.maximum(found, 0.0)


def _turn(cycles: FloatArray, ways: FloatArray, interval: float) -> FloatArray:
    """The waits of F's and of B's on the rank where they turn, (N, 2)."""
    own = cycles[:, [1, 3]] - cycles[:, [0, 2]] - ways[[1, 3]] + ways[[0, 2]]
    return _until(own, interval)


@kernel
def _step(  # noqa: PLR0917
    costs: FloatArray,  # (N,) of the cycles on the next rank, rising
    last: FloatArray,  # (N, 6) these
    cycles: FloatArray,  # (N', 6) those of this rank
    ways: FloatArray,  # (4,) by how much sooner a microbatch passes this rank without waits
    interval: float,
    near: float,  # what waits of x and v cost
    far: float,  # and those of y and u
) -> tuple[FloatArray, IntArray, FloatArray, int]:
    """The least cost of each cycle, the next rank's, the waits of x, y, u and v between them, and
    the pairs that were compared.

    Where x waits the other three are nearer by as much. The sum is least where one of the four
    waits is 0.
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
