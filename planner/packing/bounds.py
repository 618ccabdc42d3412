"""A lower bound over all packings and all schedules together.

**Each sequence as a microbatch of its own.** Take any packing and any schedule of it, and let each
op be its sequences' ops, one after the other in the same time. Inputs are there, as the packed op
had all of them and a shorter message takes no longer; a sequence's memory is taken no earlier and
given back no later than its microbatch's was. So it is a schedule of the sequences as microbatches
that costs the same: every bound of these is a bound of every packing.

**Several replicas.** Sequences are divided among them, and the step is the slowest replica's. One
of them has at least an even share of any rank's work, and of memory times time; one has the
longest sequence.

**Memory, with the number of microbatches.** A microbatch j of t_j tokens holds k t_j of stage i for
the whole of its own way from there and back, D + u t_j at least, with the delays D: of ``count``
microbatches these sum to at least k (D T + u T^2 / count), T the tokens of all, as squares are
least where they are even; what each sequence's own square adds to its own memory's time comes on
top. That fits into the rank's limit times its span.

**Few microbatches.** A replica of ``count`` of them cannot have all of them short. Take stages
i <= k, and of each microbatch y, the least share of the batch that it has of any figure used here:
of each figure it has at least y times that of all sequences, as it is their sum, and so are those
of the other microbatches.

* Leave out any microbatches. On stage k the F's and B's of the others run one at a time, between
  the first F that comes there and the last B that leaves. The first F's microbatch has run F's
  from stage i on, the last B's will run B's down to it, and its W there: with y_1 <= y_2 <= ... and
  all but the first m, stage i's rank spans at least ``turns (y_(m+1) + ...) + way y_(m+1)`` and
  the delays on that way.
* In the same way, before its first B stage i has waited for that microbatch's round trip, and the
  B's and W's of all are still to come.
* The microbatch of the largest y makes a round trip with all others in its way
  (:func:`pipeloom.solver.bounds.unlike.through_some`): ``trip y_count`` and what that bound has of
  all.

A span T allows a largest y_1, with it a largest y_2 and so on; where they do not add up to all that
the replica has, no schedule spans T. The least T that no pair of stages refuses follows by
bisection. Delays are those of the shortest sequence, but where others wait for a message
to be overtaken by a longer one: then those of all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Problem
from pipeloom.solver.bounds.general import critical_path, work
from pipeloom.solver.bounds.unlike import Figures, unlike_bounds
from pipeloom.solver.core.tolerances import ROUNDING

from .sequence_costs import SequenceCosts


def packing_bound(costs: SequenceCosts, microbatches: int, replicas: int) -> float:
    """Milliseconds that no packing into ``microbatches`` each of ``replicas`` goes below, whatever
    its schedules: of the slowest replica's period or makespan, as the problem's objective says."""
    apart = _told_apart(costs.problem_of([[i] for i in range(len(costs.lengths))]))
    values = [work(apart).value / replicas, critical_path(apart).value]
    if replicas == 1:
        values += [bound.value for bound in unlike_bounds(apart)]
    else:
        values.append(_through(Figures.of(apart), replicas))
    if costs.problem.limited:
        values.append(_memory_time(costs, Figures.of(apart), microbatches, replicas))
    values.append(_few(costs, Figures.of(apart), microbatches, replicas, max(values)))
    return max(values) * (1 - ROUNDING)


def _told_apart(problem: Problem) -> Problem:
    """The problem with figures by microbatch, also where all are alike."""
    stages = tuple(
        stage if stage.each else replace(stage, each=(stage,) * problem.microbatches)
        for stage in problem.profile.stages
    )
    return replace(problem, profile=replace(problem.profile, stages=stages))


def _through(of: Figures, replicas: int) -> float:
    """The bound of :func:`pipeloom.solver.bounds.unlike.through_some` with all microbatches, of the
    replica that has most of a stage's work."""
    least = []
    turns = (of.f + of.b).sum(axis=1) / replicas
    for i in range(len(turns)):
        come = (of.down[i:] - of.down[i]).min(axis=1)
        leave = (of.up[i:] - of.up[i]).min(axis=1)
        least.append(float((turns[i:] + come + leave).max() + of.w[i].min()))
    return max(least)


def _memory_time(costs: SequenceCosts, of: Figures, microbatches: int, replicas: int) -> float:
    """Memory times time, over the limit, of a replica that has at least an even share of it."""
    tokens = costs.lengths.astype(np.float64)
    total = float(tokens.sum())
    held = of.m_b[:, :1] / tokens[:1]
    waiting = of.m_w[:, :1] / tokens[:1]
    way, own = _ways(costs.linear), _ways(costs.square)
    delays = (of.trip - _trips(of)).min(axis=1)
    even = total**2 / (microbatches * replicas)
    cubes = float((tokens**3).sum())
    areas = held[:, 0] * (delays * total + way * even + own * cubes)
    areas += waiting[:, 0] * (costs.linear[2] * even + costs.square[2] * cubes)
    of_ranks = np.bincount(of.owner, areas, len(of.limit))
    with np.errstate(divide="ignore", invalid="ignore"):
        spans = np.where(of_ranks > 0, of_ranks / of.limit, 0.0)
    return float(spans.max()) / replicas


def _ways(per: FloatArray) -> FloatArray:
    """(S,): of a stage's F, all later stages' F and B, and its B."""
    both = per[0] + per[1]
    return np.asarray(np.cumsum(both[::-1])[::-1])


def _trips(of: Figures) -> FloatArray:
    """(S, n): round trips without delays."""
    both = of.f + of.b
    return np.asarray(np.cumsum(both[::-1], axis=0)[::-1] - of.b)


@dataclass(frozen=True, slots=True)
class _Few:
    """The argument on few microbatches for two stages; all but ``share`` in ms.

    ``turns``: of all sequences, ``at_first`` of those of the replica at least; ``way``: of a
    microbatch that had all sequences, without ``delays``. ``trip``, ``lags``: the same of the
    largest microbatch; ``others``: of those in its way. ``share``: what y sums to at least.
    """

    turns: float
    at_first: float
    way: float
    delays: float
    trip: float
    others: float
    lags: float
    share: float

    def allows(self, span: float, count: int) -> bool:
        """Whether so many microbatches can have the share within the span."""
        most = _quotient(span - self.others - self.lags, self.trip)
        left, turns = self.share, self.at_first
        for _ in range(count):
            y = min(most, _quotient(span - self.delays - turns, self.way))
            left -= y
            if y < 0 or left <= 0:
                return y >= 0
            turns = self.turns * left
        return False

    def least(self, count: int, known: float) -> float:
        """The least span that is allowed; ``known`` where that is no more."""
        if self.allows(known, count):
            return known
        low, high = known, known + self.delays + self.lags + self.turns + self.way + self.trip
        high += self.others
        while high - low > ROUNDING * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.allows(middle, count) else (middle, high)
        return low


def _quotient(room: float, way: float) -> float:
    if way > 0:
        return room / way
    return inf if room >= 0 else -1.0


def _few(costs: SequenceCosts, of: Figures, count: int, replicas: int, known: float) -> float:
    """The bound on few microbatches, or ``known`` where that is higher."""
    f, b, w = costs.times
    number, (into_f, into_b) = len(f), (each.min(axis=1) for each in (of.into_f, of.into_b))
    whole = Figures.of(_told_apart(costs.problem_of([list(range(len(costs.lengths)))])))
    waits_f = np.maximum(0.0, f - (whole.into_f[:, 0] - into_f)[:, None])
    waits_b = np.maximum(0.0, b - (whole.into_b[:, 0] - into_b)[:, None])
    for i in range(number):
        overtaken = np.concatenate([waits_f[i + 1 :], waits_b[i:]]).min(axis=0)
        others = np.minimum(np.minimum(f[i], b[i] + w[i]), overtaken)
        back = (f + b)[i + 1 :].sum(axis=0) + f[i]
        lags = float(into_f[i + 1 :].sum() + into_b[i:-1].sum())
        trip = back + b[i] + w[i] - others
        rows: list[tuple[FloatArray, tuple[FloatArray, ...], float]]
        rows = [(b[i] + w[i], (back,), lags)]
        for k in range(i, number):
            there, home = f[i:k].sum(axis=0), b[i:k].sum(axis=0) + w[i]
            delays = float(into_f[i + 1 : k + 1].sum() + into_b[i:k].sum())
            rows.append((f[k] + b[k], (there, home), delays))
        for turns, ways, delays in rows:
            shares = [each / each.sum() for each in (turns, *ways, trip, others) if each.sum() > 0]
            if shares:
                share = float(np.min(shares, axis=0).sum()) / replicas
                sums = [float(each.sum()) for each in (turns, np.sum(ways, axis=0), trip, others)]
                part = 1.0 if replicas == 1 else share
                few = _Few(
                    sums[0], part * sums[0], sums[1], delays, sums[2], part * sums[3], lags, share
                )
                known = few.least(count, known)
    return known
