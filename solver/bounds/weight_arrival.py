"""Lower bounds on the makespan of streamed weights: no rank can begin before weights have come.

For the placement by microbatches, where every rank has some, and for every schedule in which each
stage has one owner (a replicated stage waits for nothing: data parallelism is another instance) and
whose ops wait for nothing but what they need: then the owner of stage 0, whichever rank it is,
starts an F at time 0, when the first weights set out, and the makespan is the time at which the
last op ends.

Of its n microbatches, a rank runs no op of stage k or a later one, nor any B or W, before the
weights of the stages 0 .. k have come to it. Let A be when the last of them has. What it can have
run by then are F's of the stages below the one that came last. All of them are n times the sum of
T_F below k; and as no B has given memory back, those of a microbatch that has come to stage a hold
the sum of M_B below a, so that they are at most the memory limit times the largest ratio of a sum
of T_F to a sum of M_B below any a <= k. With E_k the lesser of the two, the rank ends no earlier
than A + n T - E_k, T the sum of T_F + T_B + T_W.

Messages that leave (or reach) a rank at one time occupy different wires: ``ways`` is the size of a
set of wires of which each of them occupies one, hence at least their number. A transfer of the
weights of stage s takes at least d(s), the least between any two ranks.

- *Distance.* Stage 0's weights take at least the shortest way, over other ranks or not, from their
  owner to each rank; the owner may be the one from which the farthest rank is nearest.
- *Spread.* Copies of stage 0 set out from the owner and go on from rank to rank. Cut the time
  before t in spans of d(0), backwards. In each at most ``ways`` copies make their first arrival, as
  a wire carries one message at a time; one that does so in the i-th span before t has arrived i
  times at most by t. The first span with an arrival begins at time 0 or later. So by t < k d(0) at
  most ways (1 + 2 + ... + (k - 1)) ranks beside the owner have the weights.
- *Receiving.* A rank receives the weights of those of the stages 0 .. k that it does not own over
  at most ``ways`` wires at a time. As each stage has one owner, the times of Q ranks sum up to at
  least the sum over stages of d(s) to each of them but the farthest, over ``ways``; the worst rank
  ends no earlier than their mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import TransferKind
from pipeloom.ir.model.transfers import delay_matrix
from pipeloom.ir.units import duration

from ..core.bound import Bound
from ..core.tolerances import ROUNDING
from .general import busy


def weight_arrivals(problem: Problem) -> Bound:
    """The best of the three arguments; 0 where they do not apply."""
    value = _latest(problem)

    def numbers() -> list[str]:
        work = float(busy(problem).max())
        return [
            f"the busiest ranks compute for {duration(work)}, and at least one of them waits "
            f"{duration(value - work)} for weights: whoever owns them, on their first way to all "
            "ranks over these links"
        ]

    words = "no rank begins before the weights of others have come to it"
    return Bound(value, "arrivals", words, numbers=numbers)


def _latest(problem: Problem) -> float:
    counts = np.bincount(problem.owner[0], minlength=problem.ranks)
    applies = (
        problem.placement.passing is Passing.WEIGHTS
        and problem.objective is Objective.MAKESPAN
        and problem.ranks > 1
        and counts.min() > 0
    )
    if not applies:
        return 0.0
    return max(_last_end(problem, counts >= least, int(least)) for least in np.unique(counts))


def _last_end(problem: Problem, chosen: IntArray, least: int) -> float:
    """The least end of the last ``chosen`` rank, each with ``least`` microbatches or more."""
    ranks = np.flatnonzero(chosen)
    costs = Costs.of(problem)
    rest = least * costs.durations[:3].sum() - _early(costs, least, float(costs.limit[ranks].max()))
    first = max(_distance(problem, ranks), _spread(problem, len(ranks)))
    return float(max(rest[0] + first, np.max(rest + _received(problem, ranks))))


def _early(costs: Costs, microbatches: int, limit: float) -> FloatArray:
    """The most time that F's of the stages below k can take before any B, shape (S,)."""
    times, held = (np.append(0.0, np.cumsum(row)[:-1]) for row in (costs.durations[0], costs.m_b))
    everything: FloatArray = microbatches * times
    if np.isinf(limit):
        return everything
    rates = np.divide(times, held, out=np.full(len(times), np.inf), where=held > 0)
    rates[times == 0] = 0.0
    best = np.maximum.accumulate(rates)
    within = np.multiply(best, limit * (1 + ROUNDING), out=everything.copy(), where=best < np.inf)
    return np.minimum(everything, within)


def _distance(problem: Problem, ranks: IntArray) -> float:
    way = delay_matrix(problem.profile, TransferKind.WEIGHT, 0)
    for over in range(problem.ranks):
        way = np.minimum(way, way[:, [over]] + way[[over], :])
    return float(way[:, ranks].max(axis=1).min())


def _spread(problem: Problem, number: int) -> float:
    """The least time until ``number`` ranks, one the owner, have the first stage's weights."""
    ways = _most_wires(problem, leaving=True)
    spans = 0 if number == 1 else 1
    while number - 1 > ways * spans * (spans + 1) / 2:
        spans += 1
    return spans * float(_least_delay(problem, 0).min())


def _received(problem: Problem, ranks: IntArray) -> FloatArray:
    """The mean time at which one of ``ranks`` has all stages up to k, shape (S,)."""
    times = [_least_delay(problem, stage)[ranks] for stage in range(problem.stages)]
    sums = np.cumsum([time.sum() - time.max() for time in times])
    return sums / (_most_wires(problem, leaving=False) * len(ranks))


def _least_delay(problem: Problem, stage: int) -> FloatArray:
    """The least time that the stage's weights take to each rank from any other, shape (P,)."""
    delays = delay_matrix(problem.profile, TransferKind.WEIGHT, stage).copy()
    np.fill_diagonal(delays, np.inf)
    least: FloatArray = delays.min(axis=0)
    return least


def _most_wires(problem: Problem, leaving: bool) -> float:
    """The most messages that can leave, or else reach, any rank at one time."""
    if problem.profile.links is None:
        return np.inf
    everyone = range(problem.ranks)
    return max(
        _cover(problem.profile.wires([(r, o) if leaving else (o, r) for o in everyone if o != r]))
        for r in everyone
    )


def _cover(messages: Iterable[tuple[str, ...]]) -> int:
    """The size of a set of wires of which each message occupies one: the most used one first."""
    left, size = list(messages), 0
    while left:
        wire = Counter(wire for wires in left for wire in wires).most_common(1)[0][0]
        left = [wires for wires in left if wire not in wires]
        size += 1
    return size
