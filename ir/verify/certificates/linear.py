"""The inequalities between the moments of stages: argument ``moments`` of a certificate.

They hold if each stage has its own rank. The moments of stage i are: S its first op starts (an F),
y its first B starts, t its last F starts, V its last B ends, e its last op ends (a W)::

    S ── n F's ── y ── F's, B's, W's ── t ── one F, a + 1 B's, r W's ── V ── W's ── e

n F's run before the first B. At t, in addition to the last F's own microbatch, ``a`` microbatches
have B and W to come and ``q`` have only W to come; they fit in memory together. z is 1 if all F's
run before the first B. The inequalities say:

- The ops named in the diagram fit between their moments, whether or not the rank idles.
- The microbatches of a stage's first F, last F, first B and last B came from the neighbouring stage
  or go on to it.
- The cost is at least e - S (period), or e less stage 0's S (makespan).
- Of the a + 1 W's whose B's end after t, the W of the last B comes after V.
- No span exceeds the bound, the unit of time, so the term 2 z disables "between" if z is 1.

**Recomputation and offload.** If a stage can be recomputed or offloaded, c_k microbatches use way
k: an R each, or a copy to the host and back. Of the microbatches whose F has run and whose B has
not, n_k at y and a_k at t hold M_B, as their R has run; o_k at y and p_k at t hold what way k
keeps, as their R is to come or they are offloaded. n and a then count only microbatches that stay,
and a includes the last F's own microbatch if it stays. Copies to the host run one at a time, from
the end of the first F on.

A way that takes longer than the bound occurs in no schedule that costs less, and a way that keeps
at least M_B is no better than to stay. Offload is no better than to stay, either, if nothing is
recomputed and memory cannot hold M_B beside what is kept: while a microbatch is offloaded there is
no room for another F or B, so it may as well stay.

The inequalities named "held" are in :mod:`.room_over_time`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import isfinite
from typing import TypeAlias

from ..schedule_facts import Facts
from .room_over_time import SizeWeights, lost_while_filling, weights
from .rows import MEMORY, Box, LeastFacts, NotProvenError, Row, Variable, expect_alone, least_of

ZERO, ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True)
class LinearFacts:
    """The instance in exact numbers, by stage.

    ``limit``: the memory limits; ``down`` and ``up``: the delays to and from the next stage.
    """

    microbatches: int
    makespan: bool
    stages: Sequence[LeastFacts]
    limit: Sequence[Fraction | None]
    down: Sequence[Fraction]
    up: Sequence[Fraction]

    @classmethod
    def of(cls, facts: Facts) -> LinearFacts:
        """Raises NotProvenError if the argument does not apply to the instance."""
        expect_alone(facts)
        plan = facts.plan
        if plan.passing != "activations":
            raise NotProvenError(f"argument: expected passing activations, got {plan.passing}")
        ranks = dict(sorted({(run.stage, run.rank) for run in facts.runs}))
        if len(set(ranks.values())) < plan.stages:
            raise NotProvenError("argument: moments: expected one stage per rank")
        limits = [
            Fraction(x) * (1 + MEMORY) if isfinite(x) else None
            for x in (facts.limit[ranks[s]] for s in range(plan.stages))
        ]
        stages = [_useful(least_of(facts, s), limit) for s, limit in enumerate(limits)]
        hops = [(ranks[s], ranks[s + 1], own.activation_bytes) for s, own in enumerate(stages[:-1])]
        delay = facts.network.delay
        return cls(
            plan.microbatches,
            facts.report.objective == "makespan",
            stages,
            limits,
            [Fraction(delay(a, b, size)) for a, b, size in hops],
            [Fraction(delay(b, a, size)) for a, b, size in hops],
        )

    def box(self) -> Box:
        """The ranges of all variables except the cost."""
        every = (self._box(i) for i in range(len(self.stages)))
        return {variable: range_ for own in every for variable, range_ in own.items()}

    def rows(self, unit: Fraction) -> Iterator[tuple[str, int, Row]]:
        """Each inequality as (name, stage, row), with times in ``unit``."""
        for i in range(len(self.stages)):
            for name, terms, least in _StageRows(self, i, unit).rows():
                yield name, i, (terms, least)

    def round_trip(self, stage: int) -> Fraction:
        """The least time from the start of a microbatch's F on the stage to the start of its B
        there."""
        total = self.stages[stage].f
        for later in range(stage + 1, len(self.stages)):
            own = self.stages[later]
            total += self.down[later - 1] + own.f + own.b + self.up[later - 1]
        return total

    def capacity(self, stage: int) -> int:
        """The number of microbatches whose M_B fit in the stage's memory."""
        limit, size = self.limit[stage], self.stages[stage].m_b
        if limit is None or size == 0:
            return self.microbatches
        return min(self.microbatches, int(limit / size))

    def _box(self, i: int) -> Box:
        """The ranges of stage i's variables.

        Times are between 0 and two bounds: stage 0 starts at 0 and runs its last B within one
        bound; every stage's first op comes before that, and the stage ends within one bound of it.
        """
        fits, m, ways = self.capacity(i), self.microbatches, self.stages[i].ways
        counts = {"n": (1, fits), "a": (0, fits - 1), "q": (0, m - 1), "r": (0, m - 1)}
        counts["z"] = 0, int(fits >= m or bool(ways))
        if ways:
            counts |= {"n": (0, fits), "a": (0, fits)}
        for k in range(1, 1 + len(ways)):
            counts |= {f"{name}{k}": (0, m) for name in "cop"}
            counts |= {f"{name}{k}": (0, fits) for name in "na"}
        times = dict.fromkeys("SytVe", (0, 2))
        return {(k, i): (Fraction(a), Fraction(b)) for k, (a, b) in (counts | times).items()}


def _useful(own: LeastFacts, limit: Fraction | None) -> LeastFacts:
    """The stage without ways that free no memory (see the module docstring)."""
    copied = all(way.wire for way in own.ways)
    none = limit is not None and own.m_b + own.kept > limit
    return replace(own, ways=()) if copied and none else own


_Terms: TypeAlias = Mapping[str, Fraction | int]


class _Sum(defaultdict[Variable, Fraction]):
    """A linear expression in the variables of one stage."""

    def __init__(self, stage: int, **of_stage: Fraction | int) -> None:
        super().__init__(Fraction)
        self._stage = stage
        self.plus(1, of_stage)

    def plus(self, times: Fraction | int, names: _Terms) -> _Sum:
        for name, factor in names.items():
            self[name, self._stage] += Fraction(times) * factor
        return self


_Named: TypeAlias = tuple[str, _Sum, Fraction]


class _StageRows:
    """The inequalities ``terms >= number`` of one stage."""

    def __init__(self, of: LinearFacts, i: int, unit: Fraction) -> None:
        self._of, self._i, self._unit, own = of, i, unit, of.stages[i]
        self._own = own
        self._f, self._b, self._w = (time / unit for time in (own.f, own.b, own.w))
        self._trip, self._m = of.round_trip(i) / unit, Fraction(of.microbatches)
        most = 2 * of.microbatches * own.m_b  # a higher limit has no effect
        self._limit = min(filter(None, (of.limit[i], most)), default=ONE)
        self._useful = {
            k: way
            for k, way in enumerate(own.ways, 1)
            if way.kept < own.m_b and max(way.again, way.wire) <= unit
        }
        self._last = 0 if own.ways else 1  # 1 if a does not count the last F's own microbatch

    @cached_property
    def _ahead(self) -> _Terms:
        """The number of F's before the first B, as terms: coefficient by variable."""
        return {"n": 1} | {f"{name}{k}": 1 for k in self._useful for name in "no"}

    @cached_property
    def _pending(self) -> _Terms:
        """The number of microbatches whose B is to come at t, less ``_last``, as terms."""
        return {"a": 1} | {f"{name}{k}": 1 for k in self._useful for name in "ap"}

    def _again(self, name: str) -> _Terms:
        """The time of the R's of the microbatches that ``name`` counts by way, as terms."""
        return {f"{name}{k}": way.again / self._unit for k, way in self._useful.items()}

    def _sum(self, **of_stage: Fraction | int) -> _Sum:
        return _Sum(self._i, **of_stage)

    def _late(self, sign: int) -> _Sum:
        """``sign`` times the number of W's after the last B, less ``_last``, as a sum of terms."""
        return self._sum(q=sign, r=-sign).plus(sign, self._pending)

    def rows(self) -> Iterator[_Named]:
        yield from self._moments()
        yield from self._numbers()
        yield from self._memory()
        yield from self._of_ways()
        yield from self._room_over_time()
        yield from self._onwards()

    def _moments(self) -> Iterator[_Named]:
        f, b, w, m, last = self._f, self._b, self._w, self._m, self._last
        ahead, pending = self._ahead, self._pending
        again, early, later = (self._again(name) for name in "cnp")
        head = self._sum(y=1, S=-1)
        yield "first F's", head.plus(-f, ahead).plus(-1, early), ZERO
        yield "first round trip", self._sum(y=1, S=-1), self._trip
        every_f = self._sum(t=1, S=-1).plus(-1, again).plus(1, later)
        yield "all F's", every_f, f * (m - 1)
        between = self._sum(t=1, y=-1, q=w, z=2).plus(f, ahead).plus(b + w, pending)
        between.plus(-1, again).plus(1, early).plus(1, later)
        yield "between", between, f * (m - 1) + (b + w) * (m - last)
        last_b = self._sum(V=1, t=-1, r=-w).plus(-b, pending).plus(-1, later)
        yield "last B's", last_b, f + b * last
        every_b = self._sum(V=1, y=-1, q=w, r=-w).plus(f, ahead).plus(w, pending)
        yield "all B's", every_b.plus(-1, again).plus(1, early), (f + b) * m + w * (m - last)
        yield "last round trip", self._sum(V=1, t=-1), self._trip + b
        yield "last W's", self._sum(e=1, V=-1, q=-w, r=w).plus(-w, pending), w * last
        first = 0 if self._of.makespan else self._i
        cost = _Sum(self._i, e=-1)
        cost["C", 0], cost["S", first] = ONE, ONE
        yield "cost", cost, ZERO

    def _numbers(self) -> Iterator[_Named]:
        m, last = self._m, self._last
        yield "F's left", self._sum(z=1).plus(-1, self._ahead), 1 - m
        yield "F's ahead", self._sum(z=-m).plus(1, self._ahead), ZERO
        yield "B's left", self._sum(z=last - m).plus(1, self._pending), ZERO
        yield "microbatches", self._sum(q=-1).plus(-1, self._pending), last - m
        yield "W's", self._late(1), ONE - last

    def _memory(self) -> Iterator[_Named]:
        """Memory at the first B, at the last F and during the last B.

        The unit is the limit, or twice the memory of all microbatches if that is less.
        """
        own, limit, last = self._own, self._limit, self._last
        m_b, m_w = own.m_b / limit, own.m_w / limit
        kept = {k: way.kept / limit for k, way in self._useful.items()}
        full = {name: {name: m_b} | {f"{name}{k}": m_b for k in kept} for name in "na"}
        least = {name: {f"{name}{k}": size for k, size in kept.items()} for name in "op"}
        ahead = self._sum().plus(-1, full["n"]).plus(-1, least["o"])
        yield "memory ahead", ahead, -ONE
        pending = self._sum(q=-m_w).plus(-1, full["a"]).plus(-1, least["p"])
        yield "memory", pending, m_b * last - 1
        late = self._late(-1)
        for variable in late:
            late[variable] *= m_w
        yield "memory at the last B", late, m_b + m_w * (last - 1) - 1

    def _of_ways(self) -> Iterator[_Named]:
        if not self._own.ways:
            return
        f, b, w = self._f, self._b, self._w
        yield "first B's F", self._sum(n=1).plus(1, {f"n{k}": 1 for k in self._useful}), ONE
        yield "last F's B", self._sum().plus(1, self._pending), ONE
        chosen: _Terms = {f"c{k}": -1 for k in self._useful}
        for name in "na":
            yield f"{name} that stay", self._sum(**{name: -1}).plus(1, chosen), -self._m
        for k, way in self._useful.items():
            wire = way.wire / self._unit
            yield f"of way {k} ahead", self._sum(**{f"c{k}": 1, f"n{k}": -1, f"o{k}": -1}), ZERO
            yield f"of way {k} pending", self._sum(**{f"c{k}": 1, f"a{k}": -1, f"p{k}": -1}), ZERO
            yield f"copies of way {k} ahead", self._sum(y=1, S=-1, **{f"o{k}": -wire}), f
            yield f"copies of way {k}", self._sum(e=1, S=-1, **{f"c{k}": -wire}), f + b + w

    def _room_over_time(self) -> Iterator[_Named]:
        of, own, w = self._of, self._own, self._w
        if not of.limit[self._i] or self._m * own.m_b <= self._limit:
            return
        for name, weigh in weights(self._own, self._limit, self._useful):
            stays = weigh.m_b * (self._trip + self._b)
            more = {f"c{k}": self._weighs(weigh, k) - stays for k in self._useful}
            room, early = 1 - max(weigh.run), (weigh.m_w + weigh.run[0]) * w
            lost = lost_while_filling(room, weigh.m_b, self._f, of.microbatches)
            last_b = self._sum(V=1, S=-1).plus(-1, more)
            for variable, factor in self._late(1).items():
                last_b[variable] += early * factor
            until_v = lost + lost_while_filling(room, weigh.m_b, self._b, of.microbatches)
            yield name, last_b, self._m * (stays + early) - early * self._last + until_v
            until_e = lost + lost_while_filling(room, weigh.m_b, self._b + w, of.microbatches)
            last_w = self._sum(e=1, S=-1).plus(-1, more)
            yield f"{name} to the end", last_w, self._m * (stays + early) + until_e

    def _weighs(self, weigh: SizeWeights, k: int) -> Fraction:
        """The weight times time of a microbatch in way k, without its W."""
        way = self._useful[k]
        full = way.again / self._unit
        if way.wire:
            full = self._f + 2 * way.wire / self._unit
        rest = weigh.kept[k] * max(ZERO, self._trip - full)
        return weigh.m_b * (full + self._b) + rest + weigh.run[k] * self._f

    def _onwards(self) -> Iterator[_Named]:
        of, i = self._of, self._i
        if i + 1 == len(of.stages):
            return
        down, up = of.down[i] / self._unit, of.up[i] / self._unit
        back = of.stages[i + 1].b / self._unit + up
        for name, later, earlier, sign, time in (
            ("first F on", "S", "S", 1, self._f + down),
            ("last F on", "t", "t", 1, self._f + down),
            ("first B back", "y", "y", -1, back),
            ("last B back", "V", "V", -1, up + self._b),
        ):
            terms = self._sum(**{earlier: -sign})
            terms[later, i + 1] = Fraction(sign)
            yield name, terms, time
