"""Arguments that consider single microbatches: ``critical-path``, ``through``, ``memory-time`` and
``head-tail`` of a certificate.

- ``critical-path``: the F's and B's of a microbatch and its W on the first stage run one after the
  other, the first and the last on the same rank.
- ``through``, for ``microbatches`` that pass stage ``by``, which is not before ``stage``. Of these,
  let a be the one whose F runs there first, z the one whose B runs there last. Then a's F's from
  ``stage`` on its way to ``by``, the F's and B's of all of them there, z's B's on its way back and
  its W on ``stage`` run one after the other. Every other microbatch takes time in the same span:
  its F on ``stage`` before a's, or its B and W there after z's, or its F and B on ``by`` in
  between, or else it overtakes a or z on a stage in between. In the last case a or z waits for its
  op, less the time by which the waiting microbatch's message can take longer than the other's
  message and previous op. If several overtake in a row, the ones from the first for which this is
  positive are counted.
- ``memory-time``: M_B from the start of F to the end of B and M_W while W runs, times their
  durations, are at most the rank's memory limit times its span.
- ``head-tail``, for a rank with one stage: the first B comes a round trip after the F of its
  microbatch; before it, the rank runs only F's, of microbatches that fit in memory beside that one.
  The B of the last F's microbatch comes a round trip after that F; in between, the rank runs only
  B's and W's of microbatches that fit beside it. If not all microbatches fit at once, the last F
  comes after the first B, so that the idle times of both add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import isfinite
from typing import Any

from ..schedule_facts import Facts
from .rows import MEMORY, FractionalChoice, NotProvenError, expect_alone, kept_of, times_of

ZERO = Fraction(0)


@dataclass(frozen=True, slots=True)
class VisitFacts:
    """The costs of a microbatch on a stage, in exact numbers.

    ``into_f``, ``into_b``: the delays of the messages to its F and B.
    """

    f: Fraction
    b: Fraction
    w: Fraction
    m_b: Fraction
    m_w: Fraction
    into_f: Fraction
    into_b: Fraction


def critical_path(facts: Facts) -> Fraction:
    """The longest critical path of a microbatch."""
    expect_alone(facts)
    ranks = {(run.stage, run.microbatch): run.rank for run in facts.runs}
    stages = range(facts.plan.stages)
    like = {  # one microbatch of each kind
        tuple((ranks[s, j], id(facts.at(s, j))) for s in stages): j
        for j in range(facts.plan.microbatches)
    }
    ways = (_visits(facts, ranks, j) for j in like.values())
    return max(sum((v.f + v.b + v.into_f + v.into_b for v in way), way[0].w) for way in ways)


def through(facts: Facts, argument: Mapping[str, Any]) -> Fraction:
    """The cost that ``through`` proves. Raises NotProvenError for an invalid argument."""
    every = _activations_passed(facts)
    low, high = argument.get("stage", 0), argument.get("by", 0)
    chosen = set(argument.get("microbatches", ()))
    if not low <= high < facts.plan.stages or not chosen <= set(range(len(every))) or not chosen:
        raise NotProvenError(
            f"argument: through: expected stage up to by, of {facts.plan.stages}, and some "
            f"microbatches of {len(every)}"
        )
    down = min(sum((v.f + n.into_f for v, n in _on(every[j], low, high)), ZERO) for j in chosen)
    back = min(
        sum((v.b + v.into_b for v, _ in _on(every[j], low, high)), every[j][low].w) for j in chosen
    )
    least = [min(way[low].f, way[low].b + way[low].w) for way in every]
    for s in range(low, high):
        least = list(
            map(min, least, _waits([(w[s + 1].f, w[s + 1].into_f, w[s].f) for w in every]))
        )
        least = list(map(min, least, _waits([(w[s].b, w[s].into_b, w[s + 1].b) for w in every])))
    rest = sum((least[j] for j in range(len(every)) if j not in chosen), ZERO)
    return down + back + rest + sum((every[j][high].f + every[j][high].b for j in chosen), ZERO)


def memory_time(facts: Facts, rank: int) -> Fraction:
    """The cost that ``memory-time`` proves for a rank."""
    every, limit = _activations_passed(facts), _limit(facts, rank)
    own = {run.stage for run in facts.runs if run.rank == rank}
    if not limit:
        return ZERO
    held = (
        way[s].m_b * (_trip(way, s) + way[s].b) + way[s].m_w * way[s].w
        for way in every
        for s in own
    )
    return sum(held, ZERO) / limit


def head_tail(facts: Facts, rank: int) -> Fraction:
    """The cost that ``head-tail`` proves for a rank."""
    every, limit = _activations_passed(facts), _limit(facts, rank)
    own = {run.stage for run in facts.runs if run.rank == rank}
    if len(own) != 1:
        raise NotProvenError(f"argument: head-tail: expected one stage on rank {rank}")
    stage = own.pop()
    all_held = sum((way[stage].m_b for way in every), ZERO)
    room = all_held if limit is None else limit
    forwards = FractionalChoice((way[stage].m_b, way[stage].f) for way in every)
    backwards = FractionalChoice(_pending(way[stage] for way in every))
    trips = [_trip(way, stage) - way[stage].f for way in every]
    heads, tails = (
        [trip - of.most(room - way[stage].m_b) for trip, way in zip(trips, every, strict=True)]
        for of in (forwards, backwards)
    )
    head, tail = max(ZERO, min(heads)), max(ZERO, min(tails))
    work = sum((way[stage].f + way[stage].b + way[stage].w for way in every), ZERO)
    idle = head + tail if all_held > room else max(head, tail)
    if facts.report.objective == "makespan":
        work += min(sum((v.f + n.into_f for v, n in _on(way, 0, stage)), ZERO) for way in every)
    return work + idle


def _activations_passed(facts: Facts) -> list[list[VisitFacts]]:
    """The visits of each microbatch, by stage.

    Raises NotProvenError unless activations are sent, so that each stage is on one rank.
    """
    if facts.plan.passing != "activations":
        raise NotProvenError(f"argument: expected passing activations, got {facts.plan.passing}")
    expect_alone(facts)
    ranks = {(run.stage, run.microbatch): run.rank for run in facts.runs}
    return [_visits(facts, ranks, j) for j in range(facts.plan.microbatches)]


def _visits(facts: Facts, ranks: Mapping[tuple[int, int], int], j: int) -> list[VisitFacts]:
    def delay(a: int, b: int) -> Fraction:
        """The delay between adjacent stages; 0 beyond the ends."""
        if not 0 <= min(a, b) < max(a, b) < facts.plan.stages:
            return ZERO
        size = facts.at(min(a, b), j).activation_bytes
        return Fraction(facts.network.delay(ranks[a, j], ranks[b, j], size))

    found = []
    for s in range(facts.plan.stages):
        own = facts.at(s, j)
        m_b = kept_of(facts, s, own)
        sizes = m_b, min(m_b, Fraction(own.m_w))
        found.append(VisitFacts(*times_of(own), *sizes, delay(s - 1, s), delay(s + 1, s)))
    return found


def _on(way: Sequence[VisitFacts], low: int, high: int) -> Iterator[tuple[VisitFacts, VisitFacts]]:
    """Each of a microbatch's visits from ``low`` to ``high`` - 1, with the next one."""
    return pairwise(way[low : high + 1])


def _trip(way: Sequence[VisitFacts], stage: int) -> Fraction:
    """The least time from the start of the F on ``stage`` to the start of the B there."""
    later = (v.f + n.into_f + n.b + v.into_b for v, n in _on(way, stage, len(way)))
    return sum(later, way[-1].f)


def _waits(ops: Sequence[tuple[Fraction, Fraction, Fraction]]) -> list[Fraction]:
    """For each op, the least time that a microbatch waits if this op overtakes it.

    ``ops``: (duration, delay of the message before it, duration of the previous op).
    """
    longest = max(message for _, message, _ in ops)
    return [max(ZERO, time - max(ZERO, longest - message - op)) for time, message, op in ops]


def _limit(facts: Facts, rank: int) -> Fraction | None:
    if rank >= facts.plan.ranks:
        raise NotProvenError(f"argument: rank: expected less than {facts.plan.ranks}, got {rank}")
    limit = facts.limit[rank]
    return Fraction(limit) * (1 + MEMORY) if isfinite(limit) else None


def _pending(visits: Iterable[VisitFacts]) -> Iterator[tuple[Fraction, Fraction]]:
    """(size, time) of each W with M_W, and of each B with M_B - M_W.

    A choice of any of them is a relaxation of what can be pending.
    """
    for visit in visits:
        yield visit.m_w, visit.w
        yield visit.m_b - visit.m_w, visit.b
