"""The instance of a certificate with one stage per rank, with times as multiples of a common unit.

If stages can be recomputed or offloaded, the minimum memory that a microbatch holds between F and B
(its kept memory) counts as its M_B. There is then a second, alternative variant of the instance:
M_W counts as 0, and the limit is reduced by M_B minus the kept memory. It is valid because a rank
holds, when a B starts, the whole M_B of this microbatch and at least the kept memory of all other
microbatches between F and B, which remain until the rank's next B.
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
    """A stage with the times of its ops in whole units.

    ``fits``: the maximum number of M_B's in memory. ``waiting[h]``: the maximum number of
    microbatches between B and W (each holding M_W) while h M_B's are held, for h = 0 to ``fits``.
    """

    f: int
    b: int
    w: int
    fits: int
    waiting: Sequence[int]


@dataclass(frozen=True)
class LinearFacts:
    """The instance by stage, with all times in whole multiples of ``unit`` (ms).

    ``makespan``: whether the objective is the makespan, not the period. ``down[s]``, ``up[s]``: the
    delay of a message from stage s to stage s + 1, and back.
    """

    microbatches: int
    makespan: bool
    unit: Fraction
    stages: Sequence[StageCounts]
    down: Sequence[int]
    up: Sequence[int]

    @classmethod
    def each(cls, facts: Facts) -> Iterator[LinearFacts]:
        """Yield the variants of the instance, one or two (see the module).

        A bound is proven if one of them proves it. Raises NotProvenError if the arguments ``slots``
        and ``moments`` do not apply to ``facts``.
        """
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
        """For each stage, the minimum time from a microbatch's F on stage 0 to its F on the stage.

        It is measured between the starts of both F's.
        """
        ways = (own.f + delay for own, delay in zip(self.stages, self.down, strict=False))
        return list(accumulate(ways, initial=0))

    @cached_property
    def back(self) -> list[int]:
        """For each stage, the minimum time from a microbatch's last-stage B to its B on the stage.

        It is measured between the starts of both B's.
        """
        ways = [own.b + delay for own, delay in zip(self.stages[1:], self.up, strict=True)]
        return list(accumulate(reversed(ways), initial=0))[::-1]

    def trip(self, i: int) -> int:
        """The minimum time from the start of a microbatch's F to that of its B, on stage ``i``."""
        return self.there[-1] - self.there[i] + self.stages[-1].f + self.back[i]
