"""Argument ``slots`` of a certificate: microbatches wait until others free memory.

Each stage has its own rank, whose memory holds K M_B's. F(k), B(k) and W(k) are the k-th F, B and W
of a stage, counted from 0, whatever their microbatches. When one of them starts, at least k + 1 ops
of the kind that computes its input have run. So inputs arrive as if equal k were the same
microbatch, and the memory held follows from the counts. The minimum times are:

- *turn* q, from B(k) to F(k + K + q): when this F starts, K - e M_B's are held, including its own,
  for some e. So B(k) to B(k + q + e) have ended, and of their W's, at most as many are still to run
  as there is memory for M_W's in addition to the M_B's. Since the start of B(k), all these B's have
  run, the other W's of them, and F(k + K) to F(k + K + q - 1), for which B(k) freed memory.
- *done*, from the stage's first op: before F(k), k F's have run, and all B's and W's except those
  of microbatches in memory. Before B(k), k B's have run, and in addition either k + 1 F's and all
  W's except those that fit in memory with one M_B, or at least a round trip has passed.
- *left*, to the stage's last op: from F(k) on, the ops from k on; from B(k) on, the B's and W's
  from k on and the F's from k + K on.

The bound for a stage is the length of the longest path over turns, delays and consecutive ops of
one kind, from what is done to what is left on that stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from ..schedule_facts import Facts
from .least import NotProvenError
from .linear import LinearFacts, StageCounts

TURNS = 64  # number of turns considered; q is below this


def slots(facts: Facts, stage: int) -> Fraction:
    """The lower bound on the cost, in ms, that the argument ``slots`` proves for ``stage``."""
    found = list(LinearFacts.each(facts))
    if stage >= len(found[0].stages):
        raise NotProvenError(
            f"argument: stage: expected less than {len(found[0].stages)}, got {stage}"
        )
    lags = (of.there[stage] if of.makespan else 0 for of in found)
    return max((span(of, stage) + lag) * of.unit for of, lag in zip(found, lags, strict=True))


def span(of: LinearFacts, stage: int) -> int:
    """The minimum time from the start of the stage's first op to the end of its last op.

    It is in whole units of ``of``.
    """
    return _Path(of, stage).span()


class _Path:
    """The longest paths from the start of stage ``source`` to each F(k) and B(k) of each stage.

    Lengths are in whole units of ``of``; None for ops that no path reaches.
    """

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
    """The minimum time from the start of B(k) to that of F(k + K + q), if K M_B's fit in memory."""
    more = (
        e * own.b + max(0, q + 1 + e - own.waiting[own.fits - e]) * own.w for e in range(own.fits)
    )
    return (q + 1) * own.b + q * own.f + min(more)


def _before_f(own: StageCounts, k: int) -> int:
    """The minimum time from the start of the stage's first op to that of F(k)."""
    least = (
        (k + 1 - held) * own.b + max(0, k + 1 - held - own.waiting[held]) * own.w
        for held in range(1, min(own.fits, k + 1) + 1)
    )
    return k * own.f + min(least)


def _before_b(own: StageCounts, k: int, trip: int) -> int:
    """The minimum time from the start of the stage's first op to that of B(k).

    ``trip``: the minimum time from a microbatch's F on this stage to its B (round trip).
    """
    run = (k + 1) * own.f + max(0, k - own.waiting[1]) * own.w
    return k * own.b + max(run, trip)


def _after_f(own: StageCounts, left: int) -> int:
    """The minimum time from the start of an F to the end of the stage's last op.

    ``left``: the number of F's that have not ended then, including this one.
    """
    return left * (own.f + own.b + own.w)


def _after_b(own: StageCounts, left: int) -> int:
    """The minimum time from the start of a B to the end of the stage's last op.

    ``left``: the number of B's that have not ended then, including this one.
    """
    return left * (own.b + own.w) + max(0, left - own.fits) * own.f


def _plus(time: int | None, more: int) -> int | None:
    return None if time is None else time + more


def _latest(times: Iterator[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)
