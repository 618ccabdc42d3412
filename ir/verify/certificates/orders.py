"""Argument ``every-order`` of a certificate: no beginning of a schedule leads below the bound.

For few ops. A beginning is what a schedule's first ops leave, taken by their starts: where each
microbatch is and since when, the W's that wait, when each rank is free and began. Microbatches that
are alike are not told apart, nor are W's of one stage that are. What costs the bound or more, as a
rank has so much to run or a microbatch so far to go, leads no further. Of two beginnings with the
same ops done the one is left out that is nowhere earlier, and whose ranks began no later; ops that
come next start no earlier than the last one, which they may in the other. Until all ranks have
begun (period), each op starts as soon as it can, and beginnings are the same only where all is
equal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import ceil, isfinite, lcm
from typing import NamedTuple

from ..schedule_facts import Facts
from .microbatches import visits_of
from .rows import MEMORY, NotProvenError, ways_of

MOST = 100_000  # beginnings
CELLS = 40  # (stage, microbatch) pairs: of more a beginning alone takes long


class Flight(NamedTuple):
    """A microbatch of a kind that has run so many of its F's and B's, the last until ``since``."""

    kind: int
    done: int
    since: int


class Beginning(NamedTuple):
    """``pending``: W's that wait, by kind and stage; ``free``, ``began``: by rank, -1 where it has
    not; ``latest``: the last start."""

    flights: tuple[Flight, ...]
    pending: tuple[int, ...]
    free: tuple[int, ...]
    began: tuple[int, ...]
    latest: int

    @property
    def done(self) -> tuple[object, ...]:
        return tuple(flight[:2] for flight in self.flights), self.pending

    def no_later(self, other: Beginning) -> bool:
        """Whether what follows the other, of the same ops done, costs no more after this."""
        flights = zip(self.flights, other.flights, strict=True)
        return (
            self.latest <= other.latest
            and all(mine.since <= its.since for mine, its in flights)
            and all(mine <= its for mine, its in zip(self.free, other.free, strict=True))
            and all(mine >= its for mine, its in zip(self.began, other.began, strict=True))
        )


@dataclass(frozen=True, slots=True)
class StepFacts:
    """An F or B of a kind of microbatch; ``held``: M_B on its rank, ``waits``: the message before
    it."""

    rank: int
    time: int
    waits: int
    held: Fraction


@dataclass(frozen=True)
class OrderFacts:
    """The instance in whole numbers of ``unit``: of each kind of microbatch its F's and B's one
    after the other, and by stage the rank, T_W and M_W."""

    unit: Fraction
    counts: Sequence[int]
    steps: Sequence[Sequence[StepFacts]]
    weights: Sequence[Sequence[tuple[int, int, Fraction]]]
    limit: Sequence[Fraction | None]
    period: bool

    @classmethod
    def of(cls, facts: Facts) -> OrderFacts:
        """Raises NotProvenError where the argument does not speak of the instance."""
        stages, microbatches = range(facts.plan.stages), range(facts.plan.microbatches)

        def saves(at: tuple[int, int]) -> bool:
            b, w, fused = (facts.at(*at).durations[kind] for kind in ("B", "W", "BW"))
            return fused < b + w

        if facts.moves or any(ways_of(facts, s, facts.at(s, 0)) for s in stages):
            raise NotProvenError(
                "argument: every-order: expected weights that stay, and no recomputation or offload"
            )
        if facts.report.objective == "period" and any(map(saves, product(stages, microbatches))):
            # a rank that is relaxed begins no later, which may cost more
            raise NotProvenError("argument: every-order: expected no BW shorter than B and W")
        every = visits_of(facts)
        places = {(run.stage, run.microbatch): run.rank for run in facts.runs}
        kinds = Counter(
            (tuple(places[s, j] for s in stages), tuple(way)) for j, way in enumerate(every)
        )
        times = (x for way in every for v in way for x in (v.f, v.b, v.w, v.into_f, v.into_b))
        unit = Fraction(1, lcm(*{time.denominator for time in times}))
        steps, weights = [], []
        for ranks, way in kinds:
            both = [*zip(ranks, way, strict=True)]
            forth = [StepFacts(r, int(v.f / unit), int(v.into_f / unit), v.m_b) for r, v in both]
            back = [StepFacts(r, int(v.b / unit), int(v.into_b / unit), v.m_b) for r, v in both]
            steps.append([*forth, *reversed(back)])
            weights.append([(r, int(v.w / unit), v.m_w) for r, v in both])
        limit = [Fraction(x) * (1 + MEMORY) if isfinite(x) else None for x in facts.limit]
        period = facts.report.objective == "period"
        return cls(unit, list(kinds.values()), steps, weights, limit, period)

    @cached_property
    def stages(self) -> int:
        return len(self.weights[0])

    def first(self) -> Beginning:
        flights = [Flight(kind, 0, 0) for kind, n in enumerate(self.counts) for _ in range(n)]
        ranks = len(self.limit)
        used = {step.rank for steps in self.steps for step in steps}
        began = [-1 if self.period and rank in used else 0 for rank in range(ranks)]
        pending = (0,) * (len(self.counts) * self.stages)
        return Beginning(tuple(flights), pending, (0,) * ranks, tuple(began), 0)

    def after(self, of: Beginning) -> Iterator[Beginning]:
        """The beginnings with one op more."""
        held = self._held(of)
        for flight in dict.fromkeys(of.flights):
            if flight.done == 2 * self.stages:
                continue
            step = self.steps[flight.kind][flight.done]
            limit = self.limit[step.rank]
            takes = step.held if flight.done < self.stages else 0
            if limit is not None and takes and held[step.rank] + takes > limit:
                continue
            start = self._start(of, max(of.free[step.rank], flight.since + step.waits))
            if start is not None:
                yield self._run(of, flight, step, start)
        for place, number in enumerate(of.pending):
            rank, time, _ = self.weights[place // self.stages][place % self.stages]
            start = self._start(of, of.free[rank]) if number else None
            if start is not None:
                pending = _added(of.pending, place, -1)
                yield of._replace(
                    pending=pending, free=_set(of.free, rank, start + time), latest=start
                )

    def _start(self, of: Beginning, soonest: int) -> int | None:
        """None where it would not come next."""
        if -1 not in of.began:
            return max(soonest, of.latest)
        return soonest if soonest >= of.latest else None

    def _run(self, of: Beginning, flight: Flight, step: StepFacts, start: int) -> Beginning:
        flights, end = list(of.flights), start + step.time
        flights.remove(flight)
        last = flight.done + 1 == 2 * self.stages
        flights.append(Flight(flight.kind, flight.done + 1, 0 if last else end))
        pending = of.pending
        if flight.done >= self.stages:
            stage = 2 * self.stages - 1 - flight.done
            pending = _added(pending, flight.kind * self.stages + stage, 1)
        began = of.began if of.began[step.rank] >= 0 else _set(of.began, step.rank, start)
        free = _set(of.free, step.rank, end)
        return Beginning(tuple(sorted(flights)), pending, free, began, start)

    def _held(self, of: Beginning) -> dict[int, Fraction]:
        """Memory by rank."""
        held: defaultdict[int, Fraction] = defaultdict(Fraction)
        for kind, done, _ in of.flights:
            for stage in range(min(done, 2 * self.stages - done)):
                step = self.steps[kind][stage]
                held[step.rank] += step.held
        for place, number in enumerate(of.pending):
            rank, _, size = self.weights[place // self.stages][place % self.stages]
            held[rank] += number * size
        return held

    def least(self, of: Beginning) -> int:
        """No schedule that begins so costs less."""
        ends = list(of.free)
        for place, number in enumerate(of.pending):
            rank, time, _ = self.weights[place // self.stages][place % self.stages]
            ends[rank] += number * time
        least = 0
        for kind, done, since in of.flights:
            at = since
            for place in range(done, 2 * self.stages):
                step = self.steps[kind][place]
                at = max(at + step.waits, of.free[step.rank]) + step.time
                ends[step.rank] += step.time
                if place >= self.stages:
                    time = self.weights[kind][2 * self.stages - 1 - place][1]
                    ends[step.rank] += time
                    if of.began[step.rank] >= 0:
                        least = max(least, at + time - of.began[step.rank])
        spans = (end - start for end, start in zip(ends, of.began, strict=True) if start >= 0)
        return max(least, *spans, 0)


def check_every_order(facts: Facts, bound: Fraction, most: int = MOST) -> None:
    """Raises NotProvenError where a schedule costs less than ``bound``, or there are too many."""
    if (cells := facts.plan.stages * facts.plan.microbatches) > CELLS:
        raise NotProvenError(
            f"argument: every-order: expected at most {CELLS} pairs of stage and microbatch, got "
            f"{cells}"
        )
    orders = OrderFacts.of(facts)
    below, met = ceil(bound / orders.unit), 0
    layer: list[Beginning] = [orders.first()]
    for _ in range(3 * orders.stages * sum(orders.counts)):
        after: set[Beginning] = set()
        for beginning in layer:
            after.update(each for each in orders.after(beginning) if orders.least(each) < below)
            if met + len(after) > most:
                raise NotProvenError(
                    f"argument: every-order: more than {most} beginnings of schedules"
                )
        met += len(after)
        layer = list(_best(after))
    if layer:
        cost = min(map(orders.least, layer)) * orders.unit
        raise NotProvenError(f"argument: every-order: a schedule costs {float(cost):.9g}")


def _best(beginnings: Iterable[Beginning]) -> Iterator[Beginning]:
    """The beginnings that no other stands for."""
    found: defaultdict[tuple[object, ...], list[Beginning]] = defaultdict(list)
    for each in beginnings:
        found[each.done].append(each)
    for group in found.values():
        kept: list[Beginning] = []
        for each in sorted(group, key=lambda each: (sum(each.free), each)):
            if -1 in each.began or not any(other.no_later(each) for other in kept):
                kept.append(each)
        yield from kept


def _set(numbers: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*numbers[:at], value, *numbers[at + 1 :])


def _added(numbers: tuple[int, ...], at: int, more: int) -> tuple[int, ...]:
    return _set(numbers, at, numbers[at] + more)
