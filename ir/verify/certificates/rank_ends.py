"""The most that a rank can have run before a stage's first B, or have left at its last F.

For ranks whose microbatches all go one way. Z is the sum of M_B of the stages up to stage c.

- Before the first B of c none of the stages up to c has run a B: a microbatch that has come to one
  of them holds M_B of those up to it. At most ``beyond`` can have come further, and may be through
  with all later stages: as the last of them begins the next stage all hold Z beside its M_B.
- At the last F of c no F of the stages up to c is left but this one. A microbatch that has B's to
  come from one of them on down holds M_B of those, one with a W alone M_W. At most ``beyond``, this
  one's among them, have later stages' ops to come: as the first of them begins the B of the next
  stage all hold Z beside its M_B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from .rows import FractionalChoice

ZERO = Fraction(0)


class Chunk(Protocol):
    """A stage of a rank, run ``count`` times."""

    @property
    def count(self) -> int: ...
    @property
    def f(self) -> Fraction: ...
    @property
    def b(self) -> Fraction: ...
    @property
    def w(self) -> Fraction: ...
    @property
    def m_b(self) -> Fraction: ...
    @property
    def m_w(self) -> Fraction: ...


@dataclass(frozen=True, slots=True)
class RankEnds:
    """A rank's stages, the lowest first, and its memory."""

    chunks: Sequence[Chunk]
    limit: Fraction

    @property
    def work(self) -> Fraction:
        return sum((c.count * (c.f + c.b + c.w) for c in self.chunks), ZERO)

    def all_fit(self, i: int) -> bool:
        """Whether all microbatches may hold Z of the i-th stage at once."""
        return self.chunks[0].count * self._held(i) <= self.limit

    def before(self, i: int) -> Fraction:
        """The most that has run before the first B of the i-th stage."""
        count = self.chunks[0].count
        kinds = [(self._held(q), self._sum("f", q), count) for q in range(i + 1)]
        kinds.append((self._held(i), self._sum("f", i) + self._later(i), self._beyond(i)))
        found = _most(kinds, self._filled(self.limit))
        if i + 1 < len(self.chunks):
            return found
        chunks = [(c.m_b, c.f, count) for c in self.chunks]  # before any B
        return min(found, _most(chunks, self._filled(self.limit)))

    def left(self, i: int) -> Fraction:
        """The most that is left as the last F of the i-th stage starts."""
        count, room = self.chunks[0].count, self.limit - self._held(i)
        back = [self._sum("b", q) + self._sum("w", q) for q in range(i + 1)]
        kinds = [(self._held(q), back[q], count) for q in range(i + 1)]
        kinds.append((self._held(i), back[i] + self._later(i), max(0, self._beyond(i) - 1)))
        kinds += [(c.m_w, c.w, count) for c in self.chunks]
        beside = _most(kinds, room)
        if i + 1 == len(self.chunks):  # no F is left at all
            chunks = [(c.m_b, c.b + c.w, count - 1) for c in self.chunks]
            chunks += [(c.m_w, c.w, count - 1) for c in self.chunks]
            beside = min(beside, _most(chunks, room))
        return self.chunks[i].f + back[i] + self._later(i) + beside

    def _held(self, i: int) -> Fraction:
        return self._sum("m_b", i)

    def _sum(self, name: str, i: int) -> Fraction:
        return sum((getattr(c, name) for c in self.chunks[: i + 1]), ZERO)

    def _later(self, i: int) -> Fraction:
        return sum((c.f + c.b + c.w for c in self.chunks[i + 1 :]), ZERO)

    def _beyond(self, i: int) -> int:
        if i + 1 == len(self.chunks):
            return 0
        held, room = self._held(i), self.limit - self.chunks[i + 1].m_b
        count = self.chunks[0].count
        return max(0, min(count, int(room // held))) if held else count

    def _filled(self, room: Fraction) -> Fraction:
        """The part of ``room`` that M_B's can fill: a whole number of them where all are equal."""
        size = self.chunks[0].m_b
        whole = size and all(c.m_b == size for c in self.chunks)
        return room // size * size if whole else room


def _most(kinds: Sequence[tuple[Fraction, Fraction, int]], room: Fraction) -> Fraction:
    """The most time of so many of each kind, of a size and a time."""
    things: Iterator[tuple[Fraction, Fraction]] = (
        (number * size, number * time) for size, time, number in kinds if number
    )
    return FractionalChoice(things).most(room)


def lost_at_ends(
    room: Fraction,
    largest: Fraction,
    ends: Sequence[Sequence[tuple[Fraction, Fraction]]],
    span: Fraction,
) -> tuple[Fraction, Fraction]:
    """The memory over time that stays empty at both ends, and how long those are; none where these
    may meet. Of each end sizes, and the times in which they are taken or given back."""
    lost = ramps = ZERO
    for rates in ends:
        if all(time for _, time in rates):
            slope = max(size / time for size, time in rates)
            ramps += (room - largest) / slope
            lost += (room - largest) ** 2 / (2 * slope)
    return (lost, ramps) if ramps <= span else (ZERO, ZERO)
