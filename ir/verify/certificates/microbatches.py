"""Arguments that count microbatches one by one: ``critical-path``, ``through``, ``memory-time`` and
``head-tail`` of a certificate.

- ``critical-path``: a microbatch's F's, B's and its first stage's W run one after the other, the
  first and the last on one rank.
- ``through``, of ``microbatches`` that pass stage ``by``, no lower than ``stage``: let a be the one
  whose F runs there first, z the one whose B runs there last. From a's F on ``stage`` on its way to
  ``by``, their F's and B's there, z's way back and its W run one after the other. Every other one
  takes time of that span as well: its F on ``stage`` before a's, or its B and W there behind z's,
  or its F and B on ``by`` between, or else it overtakes a, or z, on some stage between. That one
  waits for its op there then, but for the time by which its own message may take longer than the
  other's with the op before; of several in a row, for those from the first that is so short on.
- ``memory-time``: M_B from F's start to B's end and M_W while W runs fit into a rank's memory times
  its span.
- ``head-tail``, of a rank with one stage: before its first B, a round trip after that microbatch's
  F, it runs F's alone, of what has room beside it; from its last F to that one's B, a round trip
  after, B's and W's of what has room beside it. Where not all fit at once that F comes after that
  B, so that both times without ops add up.
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
    """A microbatch on a stage, in exact numbers; ``into_f``, ``into_b``: delays before F and B."""

    f: Fraction
    b: Fraction
    w: Fraction
    m_b: Fraction
    m_w: Fraction
    into_f: Fraction
    into_b: Fraction


def critical_path(facts: Facts) -> Fraction:
    """The longest way of a microbatch through all stages and back."""
    expect_alone(facts)
    ranks = {(run.stage, run.microbatch): run.rank for run in facts.runs}
    stages = range(facts.plan.stages)
    like = {  # of those that are alike one is enough
        tuple((ranks[s, j], id(facts.at(s, j))) for s in stages): j
        for j in range(facts.plan.microbatches)
    }
    ways = (_visits(facts, ranks, j) for j in like.values())
    return max(sum((v.f + v.b + v.into_f + v.into_b for v in way), way[0].w) for way in ways)


def through(facts: Facts, argument: Mapping[str, Any]) -> Fraction:
    """The cost that ``through`` proves."""
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
    """The cost that ``memory-time`` proves of a rank."""
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
    """The cost that ``head-tail`` proves of a rank."""
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
    """The visits of each microbatch by stage, where each stage is on one rank."""
    if facts.plan.passing != "activations":
        raise NotProvenError(f"argument: expected passing activations, got {facts.plan.passing}")
    expect_alone(facts)
    ranks = {(run.stage, run.microbatch): run.rank for run in facts.runs}
    return [_visits(facts, ranks, j) for j in range(facts.plan.microbatches)]


def _visits(facts: Facts, ranks: Mapping[tuple[int, int], int], j: int) -> list[VisitFacts]:
    def delay(a: int, b: int) -> Fraction:
        """Between stages next to each other."""
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
    """Each of a microbatch's visits from ``low`` to before ``high``, and the next one."""
    return pairwise(way[low : high + 1])


def _trip(way: Sequence[VisitFacts], stage: int) -> Fraction:
    """From the start of the F on a stage to that of its B, at least."""
    later = (v.f + n.into_f + n.b + v.into_b for v, n in _on(way, stage, len(way)))
    return sum(later, way[-1].f)


def _waits(ops: Sequence[tuple[Fraction, Fraction, Fraction]]) -> list[Fraction]:
    """How long an op that is overtaken waits for each: of time, message before it, op before."""
    longest = max(message for _, message, _ in ops)
    return [max(ZERO, time - max(ZERO, longest - message - op)) for time, message, op in ops]


def _limit(facts: Facts, rank: int) -> Fraction | None:
    if rank >= facts.plan.ranks:
        raise NotProvenError(f"argument: rank: expected less than {facts.plan.ranks}, got {rank}")
    limit = facts.limit[rank]
    return Fraction(limit) * (1 + MEMORY) if isfinite(limit) else None


def _pending(visits: Iterable[VisitFacts]) -> Iterator[tuple[Fraction, Fraction]]:
    """Sizes and times of W's, and of B's with what M_B is more; each taken by itself is no less."""
    for visit in visits:
        yield visit.m_w, visit.w
        yield visit.m_b - visit.m_w, visit.b
