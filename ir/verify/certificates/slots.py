"""Arguments ``slots`` and ``crossings`` of a certificate: a microbatch waits for another's memory.

Each stage has a rank of its own, and K M_B fit there. Call the k-th F (B, W) of a stage F(k) (B(k),
W(k)), whatever its microbatch: when it starts, k + 1 have run of what it needs, so that inputs come
as if they were of one microbatch, and what is held follows from the counts.

- *turn* q: F(k + K + q) starts as K - e M_B's are held, its own counted, for some e. So B(k) to B(k
  + q + e) have ended, and of their W's no more wait than fit beside; since the start of B(k) all
  these B's have run, the others of these W's, and F(k + K) to F(k + K + q - 1), which B(k) made
  room for.
- *done* and *left*: before F(k) k F's have run, and B's and W's but for what its memory holds;
  before B(k) k + 1 F's, k B's and all W's but those that fit beside an M_B, or a round trip and k
  B's. Left are from F(k) on the ops from k on, from B(k) on B's and W's from k and F's from k + K
  on.

``slots``, of a stage: the longest path over turns, delays and ops of one kind one after the other,
between what is done and what is left there.

``crossings``, of a stage i: of every d-th microbatch, 2 d = K or K + 1, called 0, 1, 2, ..., F(t +
2) comes a turn after B(t). There is a last stage c on which F(t + 1) comes before B(t), i - 1 where
there is none. P and Q bound the starts of F(t + 1) on i and of B(t) on the last stage. On c B(t)
comes after both, on c + 1 F(t + 1) does; the ways on from there bound F(t + 2) and B(t + 1): the
next P and Q, for each c. Pairs are kept that are above no other, and the least of each number of
several where there are many; at each t what is left after one of the pairs bounds the span.

Where stages may be recomputed or offloaded the least that a microbatch keeps counts as its M_B. Or
it does without M_W, in what the limit leaves beside the rest of M_B: as a B starts its own M_B is
held, and what is kept of all others between F and B, which are there until the rank's next B.
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

TURNS = 64  # q of a turn is less
PAIRS = 256  # that are kept


@dataclass(frozen=True)
class StageCounts:
    """A stage in whole ``unit``'s of time; ``waiting``: the most W's that wait, by the number of
    M_B's held, 0 to K."""

    f: int
    b: int
    w: int
    fits: int
    waiting: Sequence[int]

    def turn(self, q: int) -> int:
        """From the start of B(k) to that of F(k + K + q)."""
        more = (
            e * self.b + max(0, q + 1 + e - self.waiting[self.fits - e]) * self.w
            for e in range(self.fits)
        )
        return (q + 1) * self.b + q * self.f + min(more)

    def before_f(self, k: int) -> int:
        least = (
            (k + 1 - held) * self.b + max(0, k + 1 - held - self.waiting[held]) * self.w
            for held in range(1, min(self.fits, k + 1) + 1)
        )
        return k * self.f + min(least)

    def before_b(self, k: int, trip: int) -> int:
        run = (k + 1) * self.f + max(0, k - self.waiting[1]) * self.w
        return k * self.b + max(run, trip)

    def after_f(self, left: int) -> int:
        """With so many microbatches left."""
        return left * (self.f + self.b + self.w)

    def after_b(self, left: int) -> int:
        return left * (self.b + self.w) + max(0, left - self.fits) * self.f


@dataclass(frozen=True)
class SlotFacts:
    """The instance in whole numbers of a unit, by stage."""

    linear: LinearFacts
    unit: Fraction
    stages: Sequence[StageCounts]
    down: Sequence[int]
    up: Sequence[int]

    @classmethod
    def each(cls, facts: Facts) -> Iterator[SlotFacts]:
        """Raises NotProvenError where the arguments do not speak of the instance."""
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
        """From the start of F on stage 0 to that on each one."""
        ways = (own.f + delay for own, delay in zip(self.stages, self.down, strict=False))
        return list(accumulate(ways, initial=0))

    @cached_property
    def back(self) -> list[int]:
        """From the start of B on the last stage to that on each one."""
        ways = [own.b + delay for own, delay in zip(self.stages[1:], self.up, strict=True)]
        return list(accumulate(reversed(ways), initial=0))[::-1]

    def trip(self, i: int) -> int:
        return self.there[-1] - self.there[i] + self.stages[-1].f + self.back[i]

    def cost(self, i: int, span: int) -> Fraction:
        """The cost that a span of stage i's rank leaves at least."""
        return (span + (self.there[i] if self.linear.makespan else 0)) * self.unit


def slots(facts: Facts, stage: int) -> Fraction:
    """The cost that ``slots`` proves of a stage."""
    return max(found.cost(stage, _Path(found, stage).span()) for found in _with_stage(facts, stage))


class _Path:
    """The longest path from the first F of a stage; no moment of others is known before."""

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
    """The cost that ``crossings`` proves of a stage."""
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
    """Every ``d``-th microbatch on stage i and all later ones."""

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
        """The least times from each F(k) and B(k) to the end, turn by turn."""
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
        """The next pair for each c, i - 1 first."""
        own, last, d, up, down = self._own, self._stages[-1], self._d, self._up, self._down
        home, start, b_last = q + up[0], p, q  # B(t) on i, F(t + 1) on i, B(t) on the last stage
        for c in range(-1, len(up)):
            if c >= 0:
                b_last = max(q + up[c], p + down[c] + self._stages[c].f)  # on c
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
    """The pairs above no other one, neighbours as one where they are too many."""
    kept: list[tuple[int, int]] = []
    for p, q in sorted(pairs):
        if not kept or q < kept[-1][1]:
            kept.append((p, q))
    every = -(-len(kept) // PAIRS)
    rows = (kept[n : n + every] for n in range(0, len(kept), every))
    return [(row[0][0], row[-1][1]) for row in rows]
