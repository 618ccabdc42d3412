"""The inequalities of what a rank can have run by when: argument ``rank-flow`` of a certificate.

Each stage is on one rank. A schedule that costs less than the bound leaves the rank less than T
from its first op, an F of its lowest stage, to the end of its last op (``until`` W), or of its last
B (``until`` B): that one's microbatch still passes down to the lowest stage of any rank with a
lower one, which began before, and runs its W there. Let X_c at k, of n ``steps``, be the share of
the M ops of class c, F, B or W of a stage of the rank, that has run just before k T / n after the
rank's start, an op under way by the part of its time.

- *rising c*, *most of c*: X_c never falls, and is 1 at most; *all of c*: 1 at n.
- *pace*: M times the sum of T_c and of what X_c grows by is at most a step.
- *memory*: M times the sum of M_B (X_F - X_B) + M_W (X_B - X_W) fits, as an F takes memory as it
  starts and B and W give it back as they end. *M_B's* alone do, too, whole ones where all are
  equal; until the first F of a stage can start no B has run, so that its M_B fits beside them.
- *way c d*: where op d of a microbatch starts at least D after its op c, X_d is at most X_c as many
  whole steps before as D - max(0, T_c - T_d) has: of an op d of which the part p has run, c has
  been under way for p T_d + max(0, T_c - T_d) then, which is p T_c or more.
- *few F's*: until the first B of a stage can start, each microbatch that has come to the rank's
  next one holds M_B of all up to this one, beside M_B of the next as the last of them comes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, combinations, pairwise
from typing import Any

from ..schedule_facts import Facts
from .ranks import ONE, ZERO, ClassFacts, RankFacts, room_for
from .rows import Box, NotProvenError, Row, Variable

ROWS = 20_000  # of ways at most
_Named = tuple[str, int, Row]


@dataclass(frozen=True)
class FlowFacts:
    """A rank's part of the instance, and how it is cut into moments."""

    ranks: RankFacts
    rank: int
    until: str
    steps: int

    @classmethod
    def of(cls, facts: Facts, argument: Mapping[str, Any]) -> FlowFacts:
        """Raises NotProvenError where the argument does not speak of the instance."""
        if not argument.keys() >= {"rank", "until", "steps"}:
            raise NotProvenError("argument: rank-flow: expected rank, until and steps")
        found = cls(RankFacts.of(facts), *(argument[key] for key in ("rank", "until", "steps")))
        if len(found.ranks.streams) > 1:
            raise NotProvenError("argument: rank-flow: expected each stage on one rank")
        if not found.classes:
            raise NotProvenError(f"argument: rank-flow: no stage is on rank {found.rank}")
        most = ROWS // len(found.ways)
        if found.steps > most:
            raise NotProvenError(
                f"argument: rank-flow: steps: expected at most {most}, got {found.steps}"
            )
        return found

    @cached_property
    def classes(self) -> list[ClassFacts]:
        return [own for own in self.ranks.streams[0] if own.rank == self.rank]

    @cached_property
    def lasts(self) -> dict[str, Fraction]:
        """How long each op of the rank takes, in the order in which a microbatch comes to F's and
        B's."""
        own = self.classes
        times = {f"F{c.number}": c.f for c in own} | {f"B{c.number}": c.b for c in reversed(own)}
        return times | {f"W{c.number}": c.w for c in own}

    @cached_property
    def starts(self) -> dict[str, Fraction]:
        """The least time from a microbatch's first F to each of its F's and B's, and its W's."""
        stages = self.ranks.streams[0]
        last = stages[-1]
        forth = accumulate((own.f + own.down for own in stages[:-1]), initial=ZERO)
        found = {f"F{own.number}": start for own, start in zip(stages, forth, strict=True)}
        at = found[f"B{last.number}"] = found[f"F{last.number}"] + last.f
        for later, own in pairwise(reversed(stages)):
            at += later.b + own.up
            found[f"B{own.number}"] = at
        return found | {f"W{own.number}": found[f"B{own.number}"] + own.b for own in stages}

    @cached_property
    def ways(self) -> list[tuple[str, str, Fraction]]:
        """Ops of a microbatch, and how long what has run of the first is ahead of the second."""
        path = [op for op in self.lasts if op[0] != "W"]
        pairs = [*combinations(path, 2), *((f"B{c.number}", f"W{c.number}") for c in self.classes)]
        starts, lasts = self.starts, self.lasts
        return [(c, d, starts[d] - starts[c] - max(ZERO, lasts[c] - lasts[d])) for c, d in pairs]

    @cached_property
    def beside(self) -> Fraction:
        """The cost less T."""
        low, starts = self.classes[0], self.starts
        before = starts[f"F{low.number}"]
        if self.until == "W":
            return before if self.ranks.makespan else ZERO
        lowest = {own.rank: own for own in reversed(self.ranks.streams[0])}.values()
        return max(
            (ZERO if self.ranks.makespan else -starts[f"F{near.number}"])
            + (before + starts[f"W{near.number}"] + near.w - starts[f"W{low.number}"])
            for near in lowest
            if near.number <= low.number
        )

    def box(self) -> Box:
        return {(op, k): (ZERO, ONE) for op in self.lasts for k in range(1, self.steps + 1)}

    def rows(self, unit: Fraction) -> Iterator[_Named]:
        """Each inequality with its name and moment, of schedules that cost less than ``unit``."""
        step = (unit - self.beside) / self.steps
        if step <= 0:
            return
        yield from self._shares()
        times = {op: -time * self.classes[0].count / step for op, time in self.lasts.items()}
        for k in self._moments():
            terms = [_more(op, k, op, k - 1, time) for op, time in times.items()]
            yield "pace", k, ({v: x for each in terms for v, x in each.items()}, -ONE)
        for c, d, way in self.ways:
            apart = max(0, way // step)
            for k in self._moments():
                yield f"way {c} {d}", k, (_more(c, k - apart, d, k), ZERO)
        yield from self._memory(step)
        yield from self._few(step)

    def _moments(self) -> range:
        return range(1, self.steps + 1)

    def _shares(self) -> Iterator[_Named]:
        for op in self.lasts:
            for k in self._moments():
                yield f"rising {op}", k, (_more(op, k, op, k - 1), ZERO)
            yield f"most of {op}", self.steps, ({(op, self.steps): -ONE}, -ONE)
            if op[0] != "W" or self.until == "W":
                yield f"all of {op}", self.steps, ({("C", 0): ONE, (op, self.steps): ONE}, 2 * ONE)

    def _memory(self, step: Fraction) -> Iterator[_Named]:
        limit, own = self.ranks.limit[self.rank], self.classes
        if not limit:
            return
        share = Fraction(own[0].count) / limit
        chunks = {f"F{c.number}": -c.m_b * share for c in own}
        chunks |= {f"B{c.number}": c.m_b * share for c in own}
        held = chunks | {f"B{c.number}": (c.m_b - c.m_w) * share for c in own}
        held |= {f"W{c.number}": c.m_w * share for c in own}
        first = {c: self.starts[f"F{c.number}"] - self.starts[f"F{own[0].number}"] for c in own}
        for k in self._moments():
            coming = max((c.m_b for c in own if first[c] >= k * step), default=ZERO)
            yield "memory", k, ({(op, k): x for op, x in held.items()}, -ONE)
            room = (room_for(own, limit) - coming) / limit
            yield "M_B's", k, ({(op, k): x for op, x in chunks.items()}, -room)

    def _few(self, step: Fraction) -> Iterator[_Named]:
        limit, own = self.ranks.limit[self.rank], self.classes
        for i, (c, later) in enumerate(pairwise(own)):
            size = sum((each.m_b for each in own[: i + 1]), ZERO)
            until = self.starts[f"B{c.number}"] - self.starts[f"F{own[0].number}"]
            if not limit or not size:
                continue
            most = max(0, min(c.count, (limit - later.m_b) // size))
            for k in range(1, min(self.steps, until // step) + 1):
                name = f"F{later.number}"
                yield f"few {name}", k, ({(name, k): -ONE}, Fraction(-most, c.count))


def _more(c: str, k: int, d: str, j: int, times: Fraction = ONE) -> Mapping[Variable, Fraction]:
    """``times`` what X_c is at k more than X_d at j; nothing has run at 0 and before."""
    terms = {(c, k): times} if k > 0 else {}
    return terms | ({(d, j): -times} if j > 0 else {})
