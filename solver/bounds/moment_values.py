"""The amounts of work that a rank can have done by the moments of :mod:`.moments`.

An amount of work is the total time of the ops that have run. The amounts at a moment are found by
enumerating the sets of ops that can have run by then, given the rank's memory. The stages of the
rank are numbered 1 to K here; Z_s is the sum of M_B over its stages 1 to s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeloom.ir.model.ops import FloatArray

from ..core.tolerances import QUOTIENT, ROUNDING
from .moment_graph import Values
from .rank_model import RankModel, best_fraction, filled

MOST_VALUES = 1 << 16  # a larger set is replaced by an interval


@dataclass(frozen=True, slots=True, eq=False)
class StreamOnRank:
    """The part of a stream that runs on one rank: ``count`` microbatches on K stages.

    A stream is a group of microbatches that run each stage on the same rank. ``names``: the names
    of the K stages in the graph of moments. ``f``, ``b``, ``w``, ``m_b``, ``m_w``: T_F, T_B, T_W,
    M_B and M_W of each stage, shape (K,).
    """

    count: int
    names: Sequence[str]
    f: FloatArray
    b: FloatArray
    w: FloatArray
    m_b: FloatArray
    m_w: FloatArray

    @property
    def held(self) -> FloatArray:
        """For each stage s of the rank, Z_s: the sum of M_B over its stages up to s, shape (K,)."""
        return np.asarray(self.m_b.cumsum())

    def forwards(self, most: int | None = None) -> FloatArray:
        """Items for :func:`_fitting`: microbatches that have run F's, but no B.

        Row q - 1 is a microbatch that has run the F's of stages 1 to q, for q from 1 to ``most``,
        by default K. The 4 columns are: Z_q, the memory that the microbatch holds; the time of
        these F's; the pay, 0; the number of microbatches, 1.
        """
        none, one = np.zeros_like(self.f), np.ones_like(self.f)
        return np.stack([self.held, self.f.cumsum(), none, one], axis=1)[:most]

    def backwards(self, most: int | None = None) -> FloatArray:
        """Items for :func:`_fitting`: microbatches that still have to run B's and W's.

        Row q - 1 is a microbatch that still has to run B and W on stages q down to 1, for q from 1
        to ``most``, by default K. The 4 columns are: Z_q, the memory that the microbatch holds; the
        time of these B's and W's; the pay, which is the time of the B's; the number of stages, q.
        """
        numbers = np.ones_like(self.f).cumsum()
        columns = self.held, (self.b + self.w).cumsum(), self.b.cumsum(), numbers
        return np.stack(columns, axis=1)[:most]

    def weights(self) -> FloatArray:
        """Items for :func:`_fitting`: microbatches that only have to run one W.

        There is a row for each stage, shape (K, 4). The columns are: M_W; the time of the stage's
        W; the pay, 0; the number of W's, 1.
        """
        none, one = np.zeros_like(self.f), np.ones_like(self.f)
        return np.stack([self.m_w, self.w, none, one], axis=1)


def _fitting(items: FloatArray, room: float, number: int, most: float) -> Values:
    """The possible total times of multisets of ``items`` that fit into memory of size ``room``.

    The pay of a total time is the minimum total pay of all multisets with this time. ``items``: a
    row (size, time, pay, number) for each item, shape (N, 4). ``number``, ``most``: the maximum
    total number and the maximum total time of a multiset. If there are too many multisets, the
    result is an interval instead, from 0 to the optimum of the fractional knapsack.
    """
    rows = dict.fromkeys(map(tuple, items[items[:, 1] > 0].tolist()))
    found = np.zeros((1, 4))
    for row in rows:
        fits = number if row[0] <= 0 or np.isinf(room) else max(0.0, room // row[0])
        counts = np.arange(min(number, fits) + 1)
        if len(found) * len(counts) > 16 * MOST_VALUES:
            break
        found = (found[:, None] + counts[:, None] * np.array(row)).reshape(-1, 4)
        fit = (found[:, 0] <= room) & (found[:, 3] <= number)
        found = found[fit & (found[:, 1] <= most)]
    else:
        if len(found) <= MOST_VALUES:
            found = found[np.lexsort((found[:, 2], found[:, 1]))]
            times, first = np.unique(found[:, 1], return_index=True)
            return Values(times, found[first, 2])
    sizes = items[:, 0]
    if np.isinf(room):
        return Values.between(0.0, most)
    total = best_fraction(items[:, 1], sizes, filled(sizes, room), number) if room > 0 else 0.0
    return Values.between(0.0, min(max(0.0, most), total))


def _union(each: Sequence[Values]) -> Values:
    if len(each) == 1:
        return each[0]
    times, pays = (np.concatenate(column) for column in list(zip(*each, strict=True))[:2])
    if any(one.interval for one in each):
        return Values(np.array([times.min(), times.max()]), np.full(2, pays.min()), interval=True)
    order = np.lexsort((pays, times))
    times, first = np.unique(times[order], return_index=True)
    return Values(times, pays[order][first])


class RankSets:
    """The amounts of work that one rank can have done by each of its moments, as sets.

    A moment, such as the start of the rank's first B, is defined in :mod:`.moments`. ``model``: the
    rank. ``streams``: the rank's microbatches in groups whose microbatches run each stage on the
    same rank: two groups if there are two copies of the weights, else one.
    """

    def __init__(self, model: RankModel, streams: Sequence[StreamOnRank]) -> None:
        self.model, self.streams, self.limit = model, streams, model.limit
        self.slack = ROUNDING * model.work  # of differences of long times
        self.all_f = sum(own.count * float(own.f.sum()) for own in streams)
        self.all_bw = sum(own.count * float((own.b + own.w).sum()) for own in streams)
        self.number = sum(own.count for own in streams) - 1
        self.classes = sum(own.count * len(own.f) for own in streams)

    def room(self, held: float) -> float:
        """The memory limit minus ``held``, slightly enlarged to allow for rounding errors."""
        return float(self.limit * (1 + QUOTIENT) - held)

    def first_forward(self, i: int) -> Values:
        """The possible amounts of work that the rank has done when a stage's first F starts.

        ``i``: the index of the stage among the rank's stages, from 0. Valid only for a rank with
        one stream.
        """
        own, run = self.streams[0], float(self.streams[0].f[:i].sum())
        room = self.room(own.held[i])
        return _fitting(own.forwards(i), room, self.number, self.number * run + self.slack).plus(
            run
        )

    def first_backward(self) -> Values:
        """The possible amounts of work that the rank has done when its first B starts."""
        items = np.vstack([own.forwards() for own in self.streams])
        found = []
        for own in self.streams:
            mine, room = float(own.f.sum()), self.room(own.held[-1])
            found.append(
                _fitting(items, room, self.number, self.all_f - mine + self.slack).plus(mine)
            )
        return _union(found)

    def last_forward(self) -> Values:
        """The possible amounts of work that the rank has done when its last F starts.

        The pay of an amount is the minimum total time of this F and of all B's that are left then.
        """
        items = np.vstack(
            [part for own in self.streams for part in (own.backwards(), own.weights())]
        )
        found = []
        for own in self.streams:
            mine, room = float((own.b + own.w).sum()), self.room(own.held[-1])
            number = self.classes - len(own.f)
            others = _fitting(items, room, number, self.all_bw - mine + self.slack)
            pay = float(own.f[-1] + own.b.sum())
            found.append(others.plus(float(own.f[-1]) + mine, pay).before(self.model.work))
        return _union(found)

    def last_backward(self, i: int = 0) -> Values:
        """The possible amounts of work that the rank has done when a stage's last B ends.

        ``i``: the index of the stage among the rank's stages, from 0. With two streams, the last B
        of either stream may be meant.
        """
        weights = [own.weights() for own in self.streams]
        found = []
        for own in self.streams:
            items = np.vstack([own.backwards(i), *weights])
            mine = float(own.w[i] + (own.b + own.w)[:i].sum())
            most = self.all_bw - own.count * float(own.b[i:].sum()) - mine + self.slack
            others = _fitting(items, self.room(own.held[i]), self.classes, most)
            found.append(others.plus(mine).before(self.model.work))
        return _union(found)
