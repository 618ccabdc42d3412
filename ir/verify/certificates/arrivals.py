"""Argument ``arrivals`` of a certificate: no rank can begin before streamed weights have arrived.

It is about the makespan if each microbatch is on one rank, every rank has some, and the weights of
every stage start at time 0 on one rank, its owner, whichever rank that is.

A rank with n microbatches runs no op of stage k or a later one, and no B or W, before the weights
of stages 0 to k have arrived; let A be this time. Before A it runs at most the F's of lower stages:
n of each, and only as many as fit in memory. A microbatch that has passed some of these stages
holds at least the time of its F's there divided by the largest ratio of F time to memory, so these
F's take at most this ratio times the memory limit. The rank ends no earlier than A plus the time of
its remaining work.

``wires`` is the size of a set of wires of which every message out of a rank (or every message into
one) occupies one. d(s) is the least time of stage s's weights between two ranks. Lower bounds of A:

- For stage 0: the shortest path, through any ranks, from the owner to the farthest rank, for the
  best owner; computed for at most 64 ranks.
- For stage 0: cut the time before t into spans of length d(0), counted back from t. In each span at
  most ``wires`` copies arrive at their first rank, and a copy that does so in the i-th span has
  arrived at most i times by t. The first span does not begin before 0. This limits the number of
  ranks that have the weights at t.
- For all stages up to k: a rank receives the weights that it does not own over ``wires`` wires at a
  time. The last rank is no earlier than the mean of all ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import accumulate
from math import isfinite

from ..schedule_facts import Facts
from .least import MEMORY, NotProvenError, expect_alone, least_of

ZERO = Fraction(0)
MOST_RANKS = 64  # for which shortest paths are computed
_Matrix = list[list[Fraction]]


def arrivals(facts: Facts) -> Fraction:
    """The makespan that the argument proves."""
    expect_alone(facts)
    plan = facts.plan
    homes = {run.microbatch: run.rank for run in facts.runs}
    counts = Counter(homes.values())
    streamed = {move.stage for move in facts.moves if move.kind == "weight"}
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
    """A lower bound on the last end among the ranks with at least ``least`` microbatches."""
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
    """For each stage k, the least work left when the weights of stages 0 to k have arrived.

    ``number``: the microbatches of the rank; ``limit``: its memory.
    """
    stages = [least_of(facts, stage) for stage in range(facts.plan.stages)]
    room = Fraction(limit) * (1 + MEMORY) if isfinite(limit) else None
    work = number * sum((own.f + own.b + own.w for own in stages), ZERO)
    found, time, held = [], ZERO, ZERO
    rate: Fraction | None = ZERO  # most F time per memory; None if unlimited
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
    """The least delay of a message into ``rank``."""
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
    """The least time at which ``number`` ranks, including the owner, have the first stage's
    weights."""
    wires, spans = _wires(facts, leaving=True), min(1, number - 1)
    while wires is not None and number - 1 > wires * spans * (spans + 1) // 2:
        spans += 1
    return spans * min(_into(delays, rank) for rank in range(len(delays)))


def _wires(facts: Facts, *, leaving: bool) -> int | None:
    """``wires`` of the module's argument, for messages out of or into a rank; None: unlimited."""
    ranks, wires = range(facts.plan.ranks), facts.network.wires
    if facts.network.link is None:
        return None
    return max(
        _cover(wires(a, b) if leaving else wires(b, a) for b in ranks if a != b) for a in ranks
    )


def _cover(messages: Iterable[Sequence[object]]) -> int:
    """The size of a set of wires, chosen greedily, that contains a wire of each message."""
    left, size = list(messages), 0
    while left:
        wire = Counter(wire for wires in left for wire in wires).most_common(1)[0][0]
        left = [wires for wires in left if wire not in wires]
        size += 1
    return size
