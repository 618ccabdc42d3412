"""Argument ``arrivals`` of a certificate: ranks cannot begin before streamed weights have arrived.

It proves a lower bound on the makespan if each microbatch is on one rank, every rank has at least
one, and the weights of every stage start at time 0 on one rank, the stage's owner. The bound holds
for any choice of owners.

Before the weights of stages 0 to k have arrived on a rank, the rank runs no B or W, and no op of
stage k or later; let A be the time of this arrival. Until A, a rank with n microbatches runs only
F's of stages below k: at most n of each stage, and only as many as fit in memory. A microbatch that
has passed some of these stages holds at least the time of its F's there divided by the largest
ratio of F time to memory, so all these F's take at most this ratio times the memory limit. The rank
ends no earlier than A plus the time of its remaining work.

Let ``wires`` be the size of a set of wires such that every message out of a rank (or, in the third
bound, every message into a rank) occupies one of them, and d(s) the minimum time to send stage s's
weights from one rank to another. Lower bounds on A are:

- For stage 0: the length of the shortest path, over any ranks, from the owner to the farthest rank,
  for the best owner. It is computed only for at most 64 ranks.
- For stage 0: divide the time before t into spans of length d(0), counted back from t. In each span
  at most ``wires`` copies from the owner arrive at their first rank, and each copy that does so in
  the i-th span has arrived at no more than i ranks by t. The first span begins at 0 or later. This
  limits the number of ranks that have the weights at t.
- For all stages up to k: a rank receives the weights that it does not own over ``wires`` wires at
  the same time. The last rank has them no earlier than the mean over all ranks.
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
MOST_RANKS = 64  # the maximum for which shortest paths are computed
_Matrix = list[list[Fraction]]


def arrivals(facts: Facts) -> Fraction:
    """The lower bound on the makespan, in ms.

    Raises NotProvenError if the argument does not apply to ``facts``.
    """
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
    """A lower bound, in ms, on the time when the last of some ranks ends.

    These are all ranks with at least ``least`` microbatches. ``delays``: for each stage, the delays
    of its weights between ranks. ``counts``: the number of microbatches of each rank.
    """
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
    """For each stage k, the minimum work left, in ms, when a rank has the weights of stage k.

    This is the work that remains once the weights of stages 0 to k have arrived. ``number``: the
    number of microbatches of the rank; ``limit``: its memory limit.
    """
    stages = [least_of(facts, stage) for stage in range(facts.plan.stages)]
    room = Fraction(limit) * (1 + MEMORY) if isfinite(limit) else None
    work = number * sum((own.f + own.b + own.w for own in stages), ZERO)
    found, time, held = [], ZERO, ZERO
    rate: Fraction | None = ZERO  # maximum F time per memory; None if unlimited
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
    """The minimum delay, in ms, of a message from another rank to ``rank``."""
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
    """The minimum time, in ms, after which ``number`` ranks can have the first stage's weights.

    The owner is one of these ranks. The time is the second bound in the list of the module's
    docstring.
    """
    wires, spans = _wires(facts, leaving=True), min(1, number - 1)
    while wires is not None and number - 1 > wires * spans * (spans + 1) // 2:
        spans += 1
    return spans * min(_into(delays, rank) for rank in range(len(delays)))


def _wires(facts: Facts, *, leaving: bool) -> int | None:
    """The number ``wires`` of the module's docstring, as the maximum over all ranks.

    For each rank, it is the size of a set of wires such that every message out of the rank (if not
    ``leaving``: every message into the rank) occupies one of them. None without links, where any
    number of messages can be sent at the same time.
    """
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
