"""Lower bounds on the makespan with streamed weights: a rank waits for its first weights.

They apply if microbatches are placed on ranks and every rank has some. They hold for every schedule
in which each stage has one owner (with replicated stages nothing is awaited: that is data
parallelism, another problem) and no op waits for anything that it does not need. Then the owner of
stage 0, whichever rank it is, starts an F at time 0, when the first weights are sent, and the
makespan is the time at which the last op ends.

A rank has n microbatches. Before the weights of the stages 0 .. k have arrived it runs no op of
stage k or later, and no B or W. Let A be the time when the last of these weights arrive. By then
the rank can have run only F's of stages below the one whose weights arrived last. Let E_k be an
upper bound on their time, the smaller of two: n times the sum of T_F below k; and the memory limit
times the largest ratio, over a <= k, of the sum of T_F below a to the sum of M_B below a (as no B
has released memory, a microbatch that has reached stage a holds the latter). Then the rank ends no
earlier than A + n T - E_k, where T is the sum of all T_F + T_B + T_W.

The arrival times A are bounded as follows. Messages that leave (or reach) a rank at the same time
occupy different wires. ``ways`` is the size of a set of wires such that each of these messages
occupies one of them, so at most ``ways`` messages leave (or reach) a rank at the same time. A
transfer of the weights of stage s takes at least d(s), the minimum time between any two ranks.

- *Distance.* The weights of stage 0 take at least the length of the shortest path, possibly over
  other ranks, from their owner to each rank. The bound uses the owner whose farthest rank is
  nearest.
- *Spread.* Copies of the weights of stage 0 are sent by the owner, then from rank to rank. Divide
  the time before t into intervals of length d(0), backwards from t. Each wire carries one message
  at a time, so in each interval at most ``ways`` copies arrive for the first time; a copy that does
  so in the i-th interval before t has arrived at most i times by t. The first interval with an
  arrival begins at time 0 or later. So at t < k d(0), at most ways (1 + 2 + ... + (k - 1)) ranks
  other than the owner have the weights.
- *Receiving.* A rank receives the weights of those of the stages 0 .. k that it does not own over
  at most ``ways`` wires at a time. As each stage has one owner, the sum of the arrival times of Q
  ranks is at least the sum over stages of d(s) to each of these ranks except the farthest, divided
  by ``ways``. The last rank ends no earlier than the mean.
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
    """The bound "arrivals" on the makespan with streamed weights; the module has the proof.

    It holds because a rank cannot begin before its first weights have arrived. The value is 0 if
    weights are not streamed, the objective is the period, there is only one rank, or some rank has
    no microbatches.
    """
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
    """Lower bound on the time when all ``chosen`` ranks have ended their ops.

    ``chosen``: a mask of ranks, shape (P,). ``least``: the minimum number of microbatches on a
    chosen rank.
    """
    ranks = np.flatnonzero(chosen)
    costs = Costs.of(problem)
    rest = least * costs.durations[:3].sum() - _early(costs, least, float(costs.limit[ranks].max()))
    first = max(_distance(problem, ranks), _spread(problem, len(ranks)))
    return float(max(rest[0] + first, np.max(rest + _received(problem, ranks))))


def _early(costs: Costs, microbatches: int, limit: float) -> FloatArray:
    """For each stage k, the upper bound E_k of this module, shape (S,).

    E_k is a bound on the total time of the F's of stages below k that a rank runs before its first
    B. ``microbatches``: the number of microbatches on the rank; ``limit``: the memory limit of the
    rank.
    """
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
    """Lower bound on the time when the weights of stage 0 have arrived on ``number`` ranks.

    The owner of these weights is one of the ranks.
    """
    ways = _most_wires(problem, leaving=True)
    spans = 0 if number == 1 else 1
    while number - 1 > ways * spans * (spans + 1) / 2:
        spans += 1
    return spans * float(_least_delay(problem, 0).min())


def _received(problem: Problem, ranks: IntArray) -> FloatArray:
    """For each k, a lower bound on the time when ``ranks`` have the weights of stages 0 to k.

    It is a bound on the mean, over these ranks, of the time when the last of these weights arrives.
    The result has shape (S,).
    """
    times = [_least_delay(problem, stage)[ranks] for stage in range(problem.stages)]
    sums = np.cumsum([time.sum() - time.max() for time in times])
    return sums / (_most_wires(problem, leaving=False) * len(ranks))


def _least_delay(problem: Problem, stage: int) -> FloatArray:
    """For each rank, the minimum delay of a message with the stage's weights to it, shape (P,).

    The minimum is over all other ranks as senders.
    """
    delays = delay_matrix(problem.profile, TransferKind.WEIGHT, stage).copy()
    np.fill_diagonal(delays, np.inf)
    least: FloatArray = delays.min(axis=0)
    return least


def _most_wires(problem: Problem, leaving: bool) -> float:
    """Upper bound on the number of messages that can leave one rank at the same time.

    If ``leaving`` is False, the result is an upper bound on the number of messages that can reach
    one rank at the same time instead. It holds for every rank, and is inf if the profile has no
    links.
    """
    if problem.profile.links is None:
        return np.inf
    everyone = range(problem.ranks)
    return max(
        _cover(problem.profile.wires([(r, o) if leaving else (o, r) for o in everyone if o != r]))
        for r in everyone
    )


def _cover(messages: Iterable[tuple[str, ...]]) -> int:
    """The size of a set of wires such that every message occupies at least one of the wires.

    ``messages``: for each message, the names of the wires that it occupies. The set is found
    greedily: each step adds the wire that most of the remaining messages occupy.
    """
    left, size = list(messages), 0
    while left:
        wire = Counter(wire for wires in left for wire in wires).most_common(1)[0][0]
        left = [wires for wires in left if wire not in wires]
        size += 1
    return size
