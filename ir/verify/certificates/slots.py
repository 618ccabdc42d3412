"""Argument ``slots`` of a certificate: microbatches wait for memory of others.

Each stage has its own rank, whose memory holds K M_B's. F(k), B(k) and W(k) are the k-th F, B and W
of a stage, whatever their microbatches. When one of them starts, k + 1 ops of the kind that makes
its input have run. So inputs arrive as if equal k were the same microbatch, and the memory held
follows from the counts.

- *turn* q: F(k + K + q) starts when K - e M_B's are held, including its own, for some e. So B(k) to
  B(k + q + e) have ended, and at most as many of their W's wait as fit beside the M_B's. Since the
  start of B(k), all these B's have run, the other W's of these, and F(k + K) to F(k + K + q - 1),
  for which B(k) made room.
- *done*: before F(k), k F's have run, and all B's and W's except those of microbatches in memory.
  Before B(k), k B's have run, and in addition k + 1 F's and all W's except those that fit beside
  one M_B, or at least a round trip has passed.
- *left*: from F(k) on, the ops from k on; from B(k) on, the B's and W's from k and the F's from k +
  K on.

``slots``, for a stage: the longest path over turns, delays and consecutive ops of one kind, from
what is done to what is left on that stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from ..schedule_facts import Facts
from .least import NotProvenError
from .linear import LinearFacts, StageCounts

TURNS = 64  # q of a turn is below this


def slots(facts: Facts, stage: int) -> Fraction:
    """The cost that ``slots`` proves for a stage."""
    found = list(LinearFacts.each(facts))
    if stage >= len(found[0].stages):
        raise NotProvenError(
            f"argument: stage: expected less than {len(found[0].stages)}, got {stage}"
        )
    lags = (of.there[stage] if of.makespan else 0 for of in found)
    return max((span(of, stage) + lag) * of.unit for of, lag in zip(found, lags, strict=True))


def span(of: LinearFacts, stage: int) -> int:
    """The least time in whole units from a stage's first op to its last."""
    return _Path(of, stage).span()


class _Path:
    """Longest paths from the first F of stage ``source``; None for moments that no path reaches."""

    def __init__(self, of: LinearFacts, source: int) -> None:
        self._of, self._source = of, source
        self._turns = [
            [_turn(own, q) for q in range(min(TURNS, of.microbatches - own.fits))]
            for own in of.stages
        ]
        self._f: list[list[int | None]] = [[] for _ in of.stages]
        self._b: list[list[int | None]] = [[] for _ in of.stages]

    def span(self) -> int:
        m, own, source = self._of.microbatches, self._of.stages[self._source], self._source
        for k in range(m):
            for s in range(len(self._of.stages)):
                self._f[s].append(_latest(self._before_f(s, k)))
            for s in reversed(range(len(self._of.stages))):
                self._b[s].append(_latest(self._before_b(s, k)))
        ends = [_after_f(own, m - k) + (self._f[source][k] or 0) for k in range(m)]
        return max([*ends, *(_after_b(own, m - k) + (self._b[source][k] or 0) for k in range(m))])

    def _before_f(self, s: int, k: int) -> Iterator[int | None]:
        of = self._of
        if s == self._source:
            yield _before_f(of.stages[s], k)
        if k:
            yield _plus(self._f[s][k - 1], of.stages[s].f)
        for q, turn in enumerate(self._turns[s][: max(0, k - of.stages[s].fits + 1)]):
            yield _plus(self._b[s][k - of.stages[s].fits - q], turn)
        if s:
            yield _plus(self._f[s - 1][k], of.stages[s - 1].f + of.down[s - 1])

    def _before_b(self, s: int, k: int) -> Iterator[int | None]:
        of = self._of
        if s == self._source:
            yield _before_b(of.stages[s], k, of.trip(s))
        if k:
            yield _plus(self._b[s][k - 1], of.stages[s].b)
        if s + 1 == len(of.stages):
            yield _plus(self._f[s][k], of.stages[s].f)
        else:
            yield _plus(self._b[s + 1][k], of.stages[s + 1].b + of.up[s])


def _turn(own: StageCounts, q: int) -> int:
    """The least time from the start of B(k) to that of F(k + K + q), K the microbatches that
    fit."""
    more = (
        e * own.b + max(0, q + 1 + e - own.waiting[own.fits - e]) * own.w for e in range(own.fits)
    )
    return (q + 1) * own.b + q * own.f + min(more)


def _before_f(own: StageCounts, k: int) -> int:
    """The least time from the first op to F(k)."""
    least = (
        (k + 1 - held) * own.b + max(0, k + 1 - held - own.waiting[held]) * own.w
        for held in range(1, min(own.fits, k + 1) + 1)
    )
    return k * own.f + min(least)


def _before_b(own: StageCounts, k: int, trip: int) -> int:
    """The least time from the first op to B(k); ``trip``: the round trip."""
    run = (k + 1) * own.f + max(0, k - own.waiting[1]) * own.w
    return k * own.b + max(run, trip)


def _after_f(own: StageCounts, left: int) -> int:
    """The least time from an F to the end; ``left``: microbatches left, including its own."""
    return left * (own.f + own.b + own.w)


def _after_b(own: StageCounts, left: int) -> int:
    """The least time from a B to the end; ``left``: microbatches left, including its own."""
    return left * (own.b + own.w) + max(0, left - own.fits) * own.f


def _plus(time: int | None, more: int) -> int | None:
    return None if time is None else time + more


def _latest(times: Iterator[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)
