"""Argument ``arrivals`` of a certificate: no rank begins before streamed weights have come.

For the makespan, where each microbatch is on one rank, each rank has some, and of each stage one
rank, whichever, owns the weights, which set out at 0. Of n microbatches per rank runs no op of
stage k or a later one, nor a B or W, before it has had the weights of the stages 0 to k; let A be
when it has. Before A it runs F's of lower stages at most, no more of each than n, and no more than
fit: what a microbatch holds that has come so far is at least the time that it took divided by the
most time for its memory of any such way. So it ends at A, and what of its work is left then, or
later.

``wires`` is of a set of wires of which each message out of a rank (or each into one) takes one, for
as long as it goes; d(s) the least time of stage s's weights between two ranks. A is at least, for

- stage 0: the way over any ranks from its owner to the farthest, of the owner for which that is
  least; at most 64 ranks.
- stage 0: at most ``wires`` copies arrive somewhere first in each span of d(0), counted back from
  t, and one that does so in the i-th arrives i times by t at most. The first span is not before 0.
- all up to k, in the mean: a rank receives those that it does not own over ``wires`` at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import accumulate
from math import isfinite

from ..schedule_facts import Facts
from .rows import MEMORY, NotProvenError, expect_alone, least_of

ZERO = Fraction(0)
MOST_RANKS = 64  # of which all ways are compared
_Matrix = list[list[Fraction]]


def arrivals(facts: Facts) -> Fraction:
    """The makespan that the argument proves."""
    expect_alone(facts)
    plan = facts.plan
    homes = {run.microbatch: run.rank for run in facts.runs}
    counts = Counter(homes.values())
    streamed = {move.stage for move in facts.moves if move.tensor == "weight"}
    if (
        plan.passing != "weights"
        or facts.report.objective != "makespan"
        or len(counts) < plan.ranks
        or plan.ranks < 2
        or len(streamed) < plan.stages
    ):
        raise NotProvenError(
            "argument: arrivals: expected the makespan, microbatches on each of several ranks, and "
            "weights of all stages sent between them"
        )
    delays = [_delays(facts, stage) for stage in range(plan.stages)]
    return max(_last_end(facts, delays, counts, least) for least in set(counts.values()))


def _last_end(
    facts: Facts, delays: Sequence[_Matrix], counts: Counter[int], least: int
) -> Fraction:
    """When the last rank ends of those with ``least`` microbatches or more, at least."""
    ranks = [rank for rank, count in counts.items() if count >= least]
    left = _left(facts, least, max(facts.limit[rank] for rank in ranks))
    first = max(_farthest(delays[0], ranks), _spread(facts, delays[0], len(ranks)))
    came = [(sum(own) - max(own)) for own in ([_into(d, r) for r in ranks] for d in delays)]
    wires = _wires(facts, leaving=False)
    if wires is None:
        return left[0] + first
    mean = [x / (wires * len(ranks)) for x in accumulate(came)]
    return max(left[0] + first, *(rest + start for rest, start in zip(left, mean, strict=True)))


def _left(facts: Facts, number: int, limit: float) -> list[Fraction]:
    """By stage k: the least work left of so many microbatches once its weights have come, too."""
    stages = [least_of(facts, stage) for stage in range(facts.plan.stages)]
    room = Fraction(limit) * (1 + MEMORY) if isfinite(limit) else None
    work = number * sum((own.f + own.b + own.w for own in stages), ZERO)
    found, time, held = [], ZERO, ZERO
    rate: Fraction | None = ZERO  # None where what runs holds nothing
    for own in stages:
        early = number * time
        if room is not None and rate is not None:
            early = min(early, rate * room)
        found.append(work - early)
        time, held = time + own.f, held + own.m_b
        if held and rate is not None:
            rate = max(rate, time / held)
        elif time > 0:
            rate = None
    return found


def _delays(facts: Facts, stage: int) -> _Matrix:
    size, ranks = facts.stage(stage).weight_bytes or 0.0, range(facts.plan.ranks)
    delay = facts.network.transfer_delay
    return [[Fraction(delay(a, b, size)) if a != b else ZERO for b in ranks] for a in ranks]


def _into(delays: _Matrix, rank: int) -> Fraction:
    """The least time of a message into a rank."""
    return min(row[rank] for a, row in enumerate(delays) if a != rank)


def _farthest(delays: _Matrix, ranks: Sequence[int]) -> Fraction:
    if len(delays) > MOST_RANKS:
        return ZERO
    ways = [list(row) for row in delays]
    for over in range(len(ways)):
        for row in ways:
            to = row[over]
            row[:] = [min(way, to + on) for way, on in zip(row, ways[over], strict=True)]
    return min(max(row[rank] for rank in ranks) for row in ways)


def _spread(facts: Facts, delays: _Matrix, number: int) -> Fraction:
    """When so many ranks, the owner one of them, have the first stage's weights."""
    wires, spans = _wires(facts, leaving=True), min(1, number - 1)
    while wires is not None and number - 1 > wires * spans * (spans + 1) // 2:
        spans += 1
    return spans * min(_into(delays, rank) for rank in range(len(delays)))


def _wires(facts: Facts, *, leaving: bool) -> int | None:
    """The number of wires of which each message out of, or into, a rank takes one; None: any."""
    ranks, wires = range(facts.plan.ranks), facts.network.wires
    if facts.network.link is None:
        return None
    return max(
        _cover(wires(a, b) if leaving else wires(b, a) for b in ranks if a != b) for a in ranks
    )


def _cover(messages: Iterable[Sequence[object]]) -> int:
    """How many wires it takes, the most used one first, so that each message takes one of them."""
    left, size = list(messages), 0
    while left:
        wire = Counter(wire for wires in left for wire in wires).most_common(1)[0][0]
        left = [wires for wires in left if wire not in wires]
        size += 1
    return size
