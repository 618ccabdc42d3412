"""Lower bounds that hold for all cuts together: no schedule of any cut costs less.

One stage per rank: bounds that look at a single stage depend only on the stage's index k, its first
layer a and its end b. They add to the work of the stage its idle time before its first B and after
its last F, and consider the way of every microbatch from stage 0 *through* the stage and back. The
stage's times and sizes are sums over the layers from a to b - 1. The time of a microbatch before
and after the stage is that of the layers before a and from b on, plus the delays in between, of
which there are k and S-1-k. Messages may differ in size, so a delay counts as the minimum over all
allowed boundaries. Let g(k, a, b) be the best of these bounds. Then no cut costs less than the
minimum over all cuts of the largest g of its stages, which dynamic programming over the stages
finds.

On a V, the two stages of rank r are the layers [i, i') and [j', j), where [i, j) is what the ranks
before it leave: dynamic programming from the outside inwards. For other placements, the bound is
the work of the busiest rank if whole layers are assigned to ranks in the best way
(:func:`least_load`), or the time in which one microbatch passes all layers.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median_low

import numpy as np
import numpy.typing as npt

from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective

from ..core.overlap_relaxation import least_times_of
from ..core.tolerances import ROUNDING, counts_within
from ..placement.replication import KEPT
from .cuts import Cut, Cutter

MOST_PENDING = 256  # if memory holds more microbatches, idle time after the last F counts as 0
NEAR = 0.9  # pieces between NEAR and 1 / NEAR times the median count as equal
OTHERS = 6  # number of other pieces whose assignments are enumerated
STEPS = 50  # maximum number of partial cuts to examine, per cut that may be returned
MOST_V_LAYERS = 80  # no V bound with more layers, as its time grows with their fourth power


def least_load(pieces: Sequence[float], ranks: int) -> float:
    """Return a lower bound on the work of the busiest of ``ranks`` ranks.

    It holds for every assignment of the ``pieces`` of work to the ranks. Each piece near the median
    counts as much as the shortest of the pieces near it; as these are then equal, it is optimal to
    assign each to the rank with the least load. For the other pieces, all assignments of the
    largest ones are enumerated, and the rest count as 0.
    """
    middle, rows = median_low(pieces), sorted(pieces)
    first, end = bisect_left(rows, NEAR * middle), bisect_right(rows, middle / NEAR)
    others, least = (rows[:first] + rows[end:])[-OTHERS:], math.inf
    for loads in _shared_out(others, [0.0] * ranks):
        heapq.heapify(loads)
        for _ in range(first, end):
            heapq.heapreplace(loads, loads[0] + rows[first])
        least = min(least, max(loads))
    return least


def _shared_out(pieces: Sequence[float], loads: list[float]) -> Iterator[list[float]]:
    """Yield the load of each rank for every assignment of ``pieces`` to ranks.

    ``loads``: the load that each rank has before. Ranks are interchangeable: of assignments that
    differ only by a permutation of ranks, one suffices.
    """
    if not pieces:
        yield list(loads)
        return
    for rank in range(min(len(loads), 1 + sum(load > 0.0 for load in loads))):
        more = [load + pieces[-1] * (r == rank) for r, load in enumerate(loads)]
        yield from _shared_out(pieces[:-1], more)


@dataclass(frozen=True)
class CutBounds:
    """Lower bounds on the cost of schedules, for all cuts with one placement.

    ``limit``: the memory limit of each rank for activations. If the profile has a
    ``device_memory``, activations must also fit in what the weights, gradients and optimizer state
    of the rank's stages leave of it.
    """

    cutter: Cutter
    placement: Placement
    microbatches: int
    limit: tuple[float, ...]
    objective: Objective

    def bound(self) -> float:
        """Return a lower bound on the cost of all schedules of all cuts.

        It is infinite if it is proven that no cut fits in memory.
        """
        shared = max(self._evenly_shared(), self._way())
        if self._linear:
            return max(shared, self.cutter.best_value(self._prices.__getitem__, np.maximum))
        if self.placement.name == "v" and self.cutter.number <= MOST_V_LAYERS:
            return max(shared, self._v())
        return max(shared, self.microbatches * least_load(self._whole, len(self.limit)))

    def first(self) -> Cut | None:
        """Return a cut for which the highest bound of a rank is the minimum over all cuts.

        Returns None if no cut fits in memory, or if some rank has several stages.
        """
        if not self._linear:
            return None
        return self.cutter.best_path(self._prices.__getitem__, np.maximum)

    def of(self, cut: Cut) -> tuple[float, ...]:
        """Return the bound of each single rank for ``cut``, in descending order.

        The result serves as a key to sort cuts.
        """
        ends = (*cut[1:], self.cutter.number)
        if self._linear:
            found = [
                float(self._prices[k][a, b]) for k, (a, b) in enumerate(zip(cut, ends, strict=True))
            ]
        else:
            work = np.zeros(self.cutter.profile.ranks)
            for rank, a, b in zip(self.placement.owners, cut, ends, strict=True):
                work[rank] += self.microbatches * self._times[a, b]
            found = work.tolist()
        return tuple(sorted(found, reverse=True))

    def below(self, cost: float, most: int) -> list[Cut] | None:
        """Return the cuts for which the bound of every single rank is less than ``cost``.

        Returns None if there are more than ``most`` such cuts, or if the enumeration takes too many
        steps.
        """
        number, found, steps = self.cutter.number, list[Cut](), [most * STEPS]
        ahead = self._reachable(cost)
        work = np.zeros(len(self.limit))

        def extend(starts: Cut) -> bool:
            stage, first, rank = len(starts) - 1, starts[-1], self.placement.owners[len(starts) - 1]
            if stage == self.cutter.stages - 1:
                if self._fits(stage, first, number, work[rank], cost):
                    found.append(starts)
                return len(found) <= most
            for end in np.flatnonzero(ahead[stage + 1]).tolist():
                steps[0] -= 1
                if steps[0] < 0:
                    return False
                if end <= first or not self._fits(stage, first, end, work[rank], cost):
                    continue
                work[rank] += self.microbatches * self._times[first, end]
                complete = extend((*starts, end))
                work[rank] -= self.microbatches * self._times[first, end]
                if not complete:
                    return False
            return True

        return found if ahead[0][0] and extend((0,)) else ([] if not ahead[0][0] else None)

    def _fits(self, stage: int, first: int, end: int, before: float, cost: float) -> bool:
        """Return whether a rank's bound is below ``cost`` if ``stage`` consists of certain layers.

        The layers are ``first`` to ``end`` - 1; the rank is that of ``stage``. ``before``: the work
        of the rank's earlier stages.
        """
        if self._linear:
            return bool(self._prices[stage][first, end] < cost)
        work = before + self.microbatches * self._times[first, end]
        return bool(self._penalty[first, end] + work < cost)

    def _reachable(self, cost: float) -> list[npt.NDArray[np.bool_]]:
        """Return, for each stage, the first layers with which all bounds can be below ``cost``.

        The bounds are those of this stage and of all later ones. The result is a list of masks of
        shape (L + 1,), indexed by the first layer: one for each stage, and one for the end of the
        last stage.
        """
        end = np.zeros(self.cutter.number + 1, dtype=bool)
        end[-1] = True
        found = [end]
        for stage in range(self.cutter.stages - 1, -1, -1):
            allowed = self._prices[stage] if self._linear else self._penalty
            found.append(np.asarray(((allowed < cost) & found[-1][None, :]).any(axis=1)))
        return found[::-1]

    def fitting(self) -> FloatArray:
        """Return 0 for each run of layers that may be a stage and fits in memory, else infinity.

        A run must fit, with one microbatch, on every rank; several stages of a rank may still not
        fit together. The result has shape (L + 1, L + 1), indexed by first layer and end
        (exclusive).
        """
        rooms = [self._room(rank) for rank in set(self.placement.owners)]
        room = np.min(rooms, axis=0) * (1 + ROUNDING)
        return np.where(self.cutter.runs("m_b") <= room, self._penalty, np.inf)

    def least_full(self) -> Cut | None:
        """Return the cut whose fullest stage is least full, or None if no cut is allowed.

        A stage holds its weights, gradients and optimizer state, and the activations of P
        microbatches (M if that is less).
        """
        kept = sum(self.cutter.runs(key) for key in KEPT)
        held = self.cutter.runs("m_b") * min(self.microbatches, len(self.limit)) + kept
        return self.cutter.balanced(self._penalty, np.asarray(held))

    @property
    def _linear(self) -> bool:
        owners = self.placement.owners
        return len(set(owners)) == len(owners)

    @cached_property
    def _least(self) -> Cutter:
        """The cuts of layers with the times that bounds use, which are shorter if pairs save time.

        A pair is an F and a BW that run at the same time. B and W of each layer are shortened by
        the time that a pair saves; if some layer saves more than its B and W take, B and W of all
        layers take no time. The proof in :mod:`..core.overlap_relaxation` only needs that B and W
        of a stage take no longer than before, and that F, B and W together take no longer than a
        pair.
        """
        layers = self.cutter.profile.layers
        if all(layer.saving <= 0 for layer in layers):
            return self.cutter
        if any(layer.saving > layer.t_b + layer.t_w for layer in layers):
            least = tuple(replace(layer, t_b=0.0, t_w=0.0, t_fb=None) for layer in layers)
        else:
            least = tuple(map(least_times_of, layers))
        return replace(self.cutter, profile=replace(self.cutter.profile, layers=least))

    @cached_property
    def _times(self) -> FloatArray:
        return np.asarray(sum(self._least.runs(key) for key in ("t_f", "t_b", "t_w")))

    @cached_property
    def _delays(self) -> tuple[FloatArray, FloatArray]:
        """The minimum delays from stage k - 1 to stage k, and those from k back to k - 1.

        Returns two arrays of shape (S,), indexed by k, which are 0 for k = 0. The minimum is over
        all boundaries between layers at which a cut is allowed.
        """
        cluster, owners = self.cutter.profile.cluster, self.placement.owners
        sent = {
            self.cutter.profile.layers[end - 1].activation_bytes for end in self._boundaries[1:]
        }
        least = np.min([cluster.delays(size) for size in sent], axis=0)
        pairs = list(pairwise(owners))
        down = [0.0, *(float(least[a, b]) for a, b in pairs)]
        up = [0.0, *(float(least[b, a]) for a, b in pairs)]
        return np.array(down), np.array(up)

    @cached_property
    def _penalty(self) -> FloatArray:
        return self.cutter.penalty()

    @cached_property
    def _prices(self) -> list[FloatArray]:
        """For each stage k, the bound g(k, a, b) for all a and b: layers a to b - 1 are the stage.

        Each array has shape (L + 1, L + 1), indexed by a and b. The bound is infinite for runs of
        layers that may not be a stage or do not fit in memory.
        """
        return [self._penalty + self._alone(stage) for stage in range(self.cutter.stages)]

    def _alone(self, stage: int) -> FloatArray:
        rank = self.placement.owners[stage]
        run = _Run.of(self._least, self._room(rank), self.microbatches)
        down, up = self._delays
        f, b = self._least.sums("t_f"), self._least.sums("t_b")
        after = f[-1] - f + b[-1] - b + float((down + up)[stage + 1 :].sum())
        idle = run.idle(np.asarray(after)[None, :])
        spans = run.work + idle
        if self.objective is Objective.MAKESPAN:
            spans = spans + (f[:, None] + float(down[: stage + 1].sum()))
        way = (f + b)[:, None] + float((down + up)[: stage + 1].sum())
        last = run.w if stage == 0 else self._least.profile.layers[0].t_w
        through = run.until_last_b(idle) + way + last
        return np.where(run.fits, np.maximum(spans, through), np.inf)

    def _room(self, rank: int) -> FloatArray:
        """Return the memory left for activations on ``rank``, for each run of layers as its stage.

        The result has shape (L + 1, L + 1), indexed by first layer and end (exclusive). All values
        are infinite if layers can be recomputed or offloaded, so that activations need not be held.
        """
        if any(
            layer.t_r is not None or layer.m_o is not None for layer in self.cutter.profile.layers
        ):
            # with remat, M_B need not be held
            return np.full((self.cutter.number + 1,) * 2, np.inf)
        limit, device = self.limit[rank], self.cutter.profile.cluster.device_memory
        if device is None:
            return np.full((self.cutter.number + 1,) * 2, limit)
        kept = sum(self.cutter.runs(key) for key in KEPT)
        return np.asarray(np.clip(device[rank] - kept, 0.0, limit))

    def _evenly_shared(self) -> float:
        """Return a lower bound on the work of the busiest rank.

        It is the mean work of the ranks or, if that is more, the largest work of a single layer, or
        of a group of layers that must stay together.
        """
        return self.microbatches * max(float(self._times[0, -1]) / len(self.limit), *self._whole)

    @cached_property
    def _whole(self) -> list[float]:
        """The time of F, B and W of each layer, or of each group that must stay together."""
        return [float(self._times[a, b]) for a, b in pairwise(self._boundaries)]

    @cached_property
    def _boundaries(self) -> list[int]:
        return [0, *(i + 1 for i, tied in enumerate(self.cutter.profile.tied) if not tied)]

    def _way(self) -> float:
        """Return the minimum time of a microbatch through all layers and back, plus its last W."""
        down, up = self._delays
        way = self._least.sums("t_f")[-1] + self._least.sums("t_b")[-1] + (down + up).sum()
        return float(way + self._least.profile.layers[0].t_w)

    def _v(self) -> float:
        """Return a lower bound on the cost for all cuts on a V.

        It is the minimum, over all cuts, of the highest bound of a rank. The bound of a rank is the
        larger one of two: its work (for the makespan, plus the earliest start); and the work of its
        F's and B's plus the time of a microbatch from the first layer to the rank and back.
        """
        number, ranks = self.cutter.number, len(self.limit)
        allowed, work = self._penalty, self.microbatches * self._times
        down, up = self._delays
        f, b = self._least.sums("t_f"), self._least.sums("t_b")
        both = self.microbatches * (self._least.runs("t_f") + self._least.runs("t_b"))
        value = np.diag(np.zeros(number + 1))
        value[~np.eye(number + 1, dtype=bool)] = np.inf
        for rank in range(ranks - 1, -1, -1):
            lag = float(down[: rank + 1].sum()) if self.objective is Objective.MAKESPAN else 0.0
            way = float((down + up)[: rank + 1].sum())
            found = np.full_like(value, np.inf)
            for i in range(rank, number):
                begins = lag + (f[i] if self.objective is Objective.MAKESPAN else 0.0)
                back = way + f[i] + b[i] + (self._least.profile.layers[0].t_w if rank else 0.0)
                for j in range(i + 2, number + 1):
                    pairs = (work[i, i : j + 1][:, None] + work[i : j + 1, j][None, :]) + begins
                    through = (both[i, i : j + 1][:, None] + both[i : j + 1, j][None, :]) + back
                    rules = allowed[i, i : j + 1][:, None] + allowed[i : j + 1, j][None, :]
                    spans = np.maximum(pairs, through) + rules
                    found[i, j] = np.maximum(spans, value[i : j + 1, i : j + 1]).min()
            value = found
        return float(value[0, number])


@dataclass(frozen=True, slots=True)
class _Run:
    """All runs of layers, each as the stage of one rank; arrays by first layer and end (exclusive).

    Their shape is (L + 1, L + 1). ``f``, ``b``, ``w``, ``m_b``, ``m_w``: T_F, T_B, T_W, M_B and M_W
    of the stage. ``limit``: the memory for activations, including the tolerance for rounding.
    ``capacity``: the number of microbatches that fit in it, at most ``microbatches``.
    """

    f: FloatArray
    b: FloatArray
    w: FloatArray
    m_b: FloatArray
    m_w: FloatArray
    limit: FloatArray
    capacity: FloatArray
    microbatches: int

    @classmethod
    def of(cls, cutter: Cutter, room: FloatArray, microbatches: int) -> _Run:
        f, b, w, m_b, m_w = (cutter.runs(key) for key in ("t_f", "t_b", "t_w", "m_b", "m_w"))
        room = room * (1 + ROUNDING)
        return cls(f, b, w, m_b, m_w, room, counts_within(room, m_b, microbatches), microbatches)

    @property
    def fits(self) -> FloatArray:
        return np.asarray(self.capacity >= 1)

    @property
    def work(self) -> FloatArray:
        return self.microbatches * (self.f + self.b + self.w)

    def idle(self, after: FloatArray) -> FloatArray:
        """Return the minimum idle time before the first B and after the last F, added up.

        ``after``: the time from the end of an F, through the later stages and back, to the start of
        the B of the same microbatch. It and the result are arrays by first layer and end.
        """
        trip = self.f + after
        head = np.maximum(0.0, trip - self.capacity * self.f)
        few = self.capacity <= MOST_PENDING
        tail = np.where(few, np.maximum(0.0, trip - self.f - self._busy()), 0.0)
        apart = self.capacity < self.microbatches
        return np.where(apart, head + tail, np.maximum(head, tail))

    def _busy(self) -> FloatArray:
        """Return an upper bound on a rank's work between its last F and the B of its microbatch.

        The microbatch is that of the last F. The result has shape (L + 1, L + 1), indexed by first
        layer and end (exclusive).
        """
        most = np.zeros_like(self.f)
        for pending in range(min(int(self.capacity.max()), MOST_PENDING)):
            room = self.limit - (1 + pending) * self.m_b
            weights = counts_within(room, self.m_w, self.microbatches - 1 - pending)
            busy = pending * (self.b + self.w) + weights * self.w
            most = np.where(pending < self.capacity, np.maximum(most, busy), most)
        return most

    def until_last_b(self, idle: FloatArray) -> FloatArray:
        """Return the minimum time from the start of the first F to the end of the last B.

        Only those W's count that cannot wait until after the last B, because memory has no room for
        their M_W. ``idle``: the result of :meth:`idle`.
        """
        late = 1 + counts_within(self.limit - self.m_b, self.m_w, self.microbatches - 1)
        early = self.microbatches - late
        return np.asarray(self.microbatches * (self.f + self.b) + early * self.w + idle)
