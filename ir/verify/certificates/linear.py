"""The instance of a certificate about stages with ranks of their own, in whole units of time.

If stages can be recomputed or offloaded, the least memory that a microbatch keeps counts as its
M_B. In a second variant, M_W counts as 0 and the limit is reduced by M_B less what is kept: when a
B starts, its own M_B is held, and at least what is kept of all others between F and B, which remain
until the rank's next B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from math import isfinite, lcm

from ..schedule_facts import Facts
from .least import MEMORY, LeastFacts, NotProvenError, expect_alone, least_of


@dataclass(frozen=True)
class StageCounts:
    """A stage with times in whole units.

    ``fits``: the number of M_B's that memory holds. ``waiting[h]``: the most W's that can wait
    while h M_B's are held, h = 0 to ``fits``.
    """

    f: int
    b: int
    w: int
    fits: int
    waiting: Sequence[int]


@dataclass(frozen=True)
class LinearFacts:
    """The instance by stage; ``down`` and ``up``: the delays to and from the next stage."""

    microbatches: int
    makespan: bool
    unit: Fraction
    stages: Sequence[StageCounts]
    down: Sequence[int]
    up: Sequence[int]

    @classmethod
    def each(cls, facts: Facts) -> Iterator[LinearFacts]:
        """The variants of the instance. Raises NotProvenError if the arguments do not apply."""
        expect_alone(facts)
        plan = facts.plan
        if plan.passing != "activations":
            raise NotProvenError(f"argument: expected passing activations, got {plan.passing}")
        ranks = dict(sorted({(run.stage, run.rank) for run in facts.runs}))
        if len(set(ranks.values())) < plan.stages:
            raise NotProvenError("argument: expected one stage per rank")
        least = [least_of(facts, stage) for stage in range(plan.stages)]
        yield cls._of(facts, ranks, least, at_backwards=False)
        if any(own.kept < own.m_b for own in least):
            yield cls._of(facts, ranks, least, at_backwards=True)

    @classmethod
    def _of(
        cls, facts: Facts, ranks: dict[int, int], least: Sequence[LeastFacts], *, at_backwards: bool
    ) -> LinearFacts:
        delay, m = facts.network.delay, facts.plan.microbatches
        hops = [(ranks[s], ranks[s + 1], own.activation_bytes) for s, own in enumerate(least[:-1])]
        down = [Fraction(delay(a, b, size)) for a, b, size in hops]
        up = [Fraction(delay(b, a, size)) for a, b, size in hops]
        times = [*down, *up, *(time for own in least for time in (own.f, own.b, own.w))]
        unit = Fraction(1, lcm(*(time.denominator for time in times)))
        stages = []
        for stage, own in enumerate(least):
            given, m_b, m_w = facts.limit[ranks[stage]], own.kept, min(own.m_w, own.kept)
            limit = Fraction(given) * (1 + MEMORY) if isfinite(given) else None
            if at_backwards and limit is not None:
                m_w, limit = Fraction(0), limit - own.m_b + own.kept
            fits = m if limit is None or not m_b else min(m, int(limit // m_b))
            if not fits:
                raise NotProvenError("argument: expected memory for a microbatch on each stage")
            waiting = [
                m if limit is None or not m_w else int((limit - held * m_b) // m_w)
                for held in range(fits + 1)
            ]
            f, b, w = (int(time / unit) for time in (own.f, own.b, own.w))
            stages.append(StageCounts(f, b, w, fits, waiting))
        whole = [[int(time / unit) for time in times] for times in (down, up)]
        return cls(m, facts.report.objective == "makespan", unit, stages, *whole)

    @cached_property
    def there(self) -> list[int]:
        """The least time from the start of F on stage 0 to its start on each stage."""
        ways = (own.f + delay for own, delay in zip(self.stages, self.down, strict=False))
        return list(accumulate(ways, initial=0))

    @cached_property
    def back(self) -> list[int]:
        """The least time from the start of B on the last stage to its start on each stage."""
        ways = [own.b + delay for own, delay in zip(self.stages[1:], self.up, strict=True)]
        return list(accumulate(reversed(ways), initial=0))[::-1]

    def trip(self, i: int) -> int:
        """The least time from the start of F on a stage to the start of B there."""
        return self.there[-1] - self.there[i] + self.stages[-1].f + self.back[i]
