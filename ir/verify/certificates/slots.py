"""Arguments ``slots`` and ``crossings`` of a certificate: microbatches wait for memory of others.

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

``crossings``, for a stage i: take every d-th microbatch, where 2 d is K or K + 1, and number them
0, 1, 2, ...: F(t + 2) comes a turn after B(t). There is a last stage c on which F(t + 1) comes
before B(t); let c = i - 1 if there is none. P and Q are lower bounds of the starts of F(t + 1) on
stage i and of B(t) on the last stage. On c, B(t) comes after both; on c + 1, F(t + 1) does. The
paths from there lead to lower bounds of F(t + 2) and B(t + 1), the next P and Q, for each c. Only
pairs that no other pair dominates are kept; if there are many, several are replaced by their
minimum. At each t, what is left after the best pair bounds the span.

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
from math import lcm

from ..schedule_facts import Facts
from .linear import LinearFacts
from .rows import NotProvenError

TURNS = 64  # q of a turn is below this
PAIRS = 256  # most pairs (P, Q) that are kept


@dataclass(frozen=True)
class StageCounts:
    """A stage with times in whole units.

    ``fits``: K. ``waiting[h]``: the most W's that can wait while h M_B's are held, h = 0 to K.
    """

    f: int
    b: int
    w: int
    fits: int
    waiting: Sequence[int]

    def turn(self, q: int) -> int:
        """The least time from the start of B(k) to that of F(k + K + q), K the microbatches that
        fit."""
        more = (
            e * self.b + max(0, q + 1 + e - self.waiting[self.fits - e]) * self.w
            for e in range(self.fits)
        )
        return (q + 1) * self.b + q * self.f + min(more)

    def before_f(self, k: int) -> int:
        """The least time from the first op to F(k)."""
        least = (
            (k + 1 - held) * self.b + max(0, k + 1 - held - self.waiting[held]) * self.w
            for held in range(1, min(self.fits, k + 1) + 1)
        )
        return k * self.f + min(least)

    def before_b(self, k: int, trip: int) -> int:
        """The least time from the first op to B(k); ``trip``: the round trip."""
        run = (k + 1) * self.f + max(0, k - self.waiting[1]) * self.w
        return k * self.b + max(run, trip)

    def after_f(self, left: int) -> int:
        """The least time from an F to the end; ``left``: microbatches left, including its own."""
        return left * (self.f + self.b + self.w)

    def after_b(self, left: int) -> int:
        """The least time from a B to the end; ``left``: microbatches left, including its own."""
        return left * (self.b + self.w) + max(0, left - self.fits) * self.f


@dataclass(frozen=True)
class SlotFacts:
    """The instance with times in whole units, by stage."""

    linear: LinearFacts
    unit: Fraction
    stages: Sequence[StageCounts]
    down: Sequence[int]
    up: Sequence[int]

    @classmethod
    def each(cls, facts: Facts) -> Iterator[SlotFacts]:
        """The variants of the instance. Raises NotProvenError if the arguments do not apply."""
        linear = LinearFacts.of(facts)
        yield cls.of(linear)
        if any(own.ways for own in linear.stages):
            yield cls.of(linear, at_backwards=True)

    @classmethod
    def of(cls, of: LinearFacts, *, at_backwards: bool = False) -> SlotFacts:
        times = [*of.down, *of.up, *(t for own in of.stages for t in (own.f, own.b, own.w))]
        unit = Fraction(1, lcm(*(time.denominator for time in times)))
        stages = []
        for own, whole in zip(of.stages, of.limit, strict=True):
            m, m_b, m_w, limit = of.microbatches, own.kept, min(own.m_w, own.kept), whole
            if at_backwards and whole is not None:
                m_w, limit = Fraction(0), whole - own.m_b + own.kept
            fits = m if limit is None or not m_b else min(m, int(limit // m_b))
            if not fits:
                raise NotProvenError("argument: expected memory for a microbatch on each stage")
            waiting = [
                m if limit is None or not m_w else int((limit - held * m_b) // m_w)
                for held in range(fits + 1)
            ]
            f, b, w = (int(time / unit) for time in (own.f, own.b, own.w))
            stages.append(StageCounts(f, b, w, fits, waiting))
        down, up = ([int(time / unit) for time in times] for times in (of.down, of.up))
        return cls(of, unit, stages, down, up)

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
        return self.there[-1] - self.there[i] + self.stages[-1].f + self.back[i]

    def cost(self, i: int, span: int) -> Fraction:
        """The least cost if the rank of stage i spans ``span`` units."""
        return (span + (self.there[i] if self.linear.makespan else 0)) * self.unit


def slots(facts: Facts, stage: int) -> Fraction:
    """The cost that ``slots`` proves for a stage."""
    return max(found.cost(stage, _Path(found, stage).span()) for found in _with_stage(facts, stage))


class _Path:
    """Longest paths from the first F of stage ``source``; None for moments that no path reaches."""

    def __init__(self, of: SlotFacts, source: int) -> None:
        self._of, self._source = of, source
        self._turns = [
            [own.turn(q) for q in range(min(TURNS, of.linear.microbatches - own.fits))]
            for own in of.stages
        ]
        self._f: list[list[int | None]] = [[] for _ in of.stages]
        self._b: list[list[int | None]] = [[] for _ in of.stages]

    def span(self) -> int:
        m, own, source = self._of.linear.microbatches, self._of.stages[self._source], self._source
        for k in range(m):
            for s in range(len(self._of.stages)):
                self._f[s].append(_latest(self._before_f(s, k)))
            for s in reversed(range(len(self._of.stages))):
                self._b[s].append(_latest(self._before_b(s, k)))
        ends = [own.after_f(m - k) + (self._f[source][k] or 0) for k in range(m)]
        return max([*ends, *(own.after_b(m - k) + (self._b[source][k] or 0) for k in range(m))])

    def _before_f(self, s: int, k: int) -> Iterator[int | None]:
        of = self._of
        if s == self._source:
            yield of.stages[s].before_f(k)
        if k:
            yield _plus(self._f[s][k - 1], of.stages[s].f)
        for q, turn in enumerate(self._turns[s][: max(0, k - of.stages[s].fits + 1)]):
            yield _plus(self._b[s][k - of.stages[s].fits - q], turn)
        if s:
            yield _plus(self._f[s - 1][k], of.stages[s - 1].f + of.down[s - 1])

    def _before_b(self, s: int, k: int) -> Iterator[int | None]:
        of = self._of
        if s == self._source:
            yield of.stages[s].before_b(k, of.trip(s))
        if k:
            yield _plus(self._b[s][k - 1], of.stages[s].b)
        if s + 1 == len(of.stages):
            yield _plus(self._f[s][k], of.stages[s].f)
        else:
            yield _plus(self._b[s + 1][k], of.stages[s + 1].b + of.up[s])


def _plus(time: int | None, more: int) -> int | None:
    return None if time is None else time + more


def _latest(times: Iterator[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def crossings(facts: Facts, stage: int) -> Fraction:
    """The cost that ``crossings`` proves for a stage.

    Raises NotProvenError if the argument does not apply.
    """
    every = list(_with_stage(facts, stage))
    some = [each for each in every if 2 <= each.stages[stage].fits < each.linear.microbatches]
    if not some:
        raise NotProvenError(
            f"argument: crossings: expected memory of stage {stage} for 2 to "
            f"{every[0].linear.microbatches - 1} microbatches"
        )
    return max(each.cost(stage, _Crossings(each, stage).span()) for each in some)


def _with_stage(facts: Facts, stage: int) -> Iterator[SlotFacts]:
    for found in SlotFacts.each(facts):
        if stage >= len(found.stages):
            raise NotProvenError(
                f"argument: stage: expected less than {len(found.stages)}, got {stage}"
            )
        yield found


class _Crossings:
    """The argument ``crossings`` for stage i, with every ``d``-th microbatch."""

    def __init__(self, of: SlotFacts, i: int) -> None:
        self._own, self._m, self._trip = of.stages[i], of.linear.microbatches, of.trip(i)
        self._d = (self._own.fits + 1) // 2
        self._turn = self._own.turn(2 * self._d - self._own.fits)
        self._down = [time - of.there[i] for time in of.there[i:]]
        self._up = of.back[i:]
        self._stages = of.stages[i:]

    def span(self) -> int:
        pairs = [(self._d * self._own.f, self._down[-1] + self._stages[-1].f)]
        after_f, after_b = self._after()
        span = 0
        for t in range(-(-self._m // self._d)):
            for r in range(min(self._d, self._m - t * self._d)):
                now, later = r + t * self._d, r + (t + 1) * self._d
                spans = (
                    max(
                        q + self._up[0] + after_b[now], p + after_f[later] if later < self._m else 0
                    )
                    for p, q in pairs
                )
                span = max(span, self._own.before_f(r) + min(spans))
            pairs = _lowest([each for pair in pairs for each in self._next(*pair)])
        return span

    def _after(self) -> tuple[list[int], list[int]]:
        """The least times from each F(k) and each B(k) to the end."""
        own, m = self._own, self._m
        after_f = [own.after_f(m - k) for k in range(m)]
        after_b = [own.after_b(m - k) for k in range(m)]
        turns = [own.turn(q) for q in range(min(TURNS, m - own.fits))]
        for k in reversed(range(m)):
            later = zip(turns, after_f[k + own.fits :], strict=False)
            after_b[k] = max([after_b[k], *(turn + rest for turn, rest in later)])
            after_f[k] = max(after_f[k], self._trip + after_b[k])
        return after_f, after_b

    def _next(self, p: int, q: int) -> Iterator[tuple[int, int]]:
        """The next pair (P, Q) for each c, starting with i - 1."""
        own, last, d, up, down = self._own, self._stages[-1], self._d, self._up, self._down
        home, start, b_last = q + up[0], p, q  # B(t) on i, F(t + 1) on i, B(t) on the last stage
        for c in range(-1, len(up)):
            if c >= 0:
                b_last = max(q + up[c], p + down[c] + self._stages[c].f)  # its start on c
                home = b_last + up[0] - up[c]
            start = max(p, home + own.b) if c < 0 else p
            if c + 1 < len(up):
                meets = max(p + down[c + 1], q + up[c + 1] + self._stages[c + 1].b)
                turned, before = meets + down[-1] - down[c + 1], q
            else:
                turned, before = p + down[-1], b_last
            yield (
                max(home + self._turn, start + d * own.f),
                max(turned + last.f, before + d * last.b),
            )


def _lowest(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pairs that no other pair dominates; neighbours are merged to at most PAIRS."""
    kept: list[tuple[int, int]] = []
    for p, q in sorted(pairs):
        if not kept or q < kept[-1][1]:
            kept.append((p, q))
    every = -(-len(kept) // PAIRS)
    rows = (kept[n : n + every] for n in range(0, len(kept), every))
    return [(row[0][0], row[-1][1]) for row in rows]
