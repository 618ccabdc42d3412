"""The pairs of ops of one rank whose order is not fixed.

A *stream* is a set of microbatches that run every stage on the same rank: all of them, or those of
one direction. They are alike, so they can be numbered by the order of any class: the k-th F, B and
W that a stage and stream run are those of its k-th microbatch. A *class* is the ops of one kind,
stage and stream.

On its rank a microbatch runs the F's of its stages upwards, then the B's downwards. This is its
*route*, along which the memory that it holds is known. Suppose that a(i) runs before b(j) although
i > j and a comes before b on the route. Then all microbatches j ... i have started a, and none has
ended b. So (i - j) times the least that a microbatch holds between the two, plus what i holds
during a, fits into memory. That leaves few pairs open.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

from pipeloom.ir.model.ops import OpKind

FORWARD, BACKWARD, WEIGHT = OpKind.F, OpKind.B, OpKind.W


class OpClass(NamedTuple):
    """The ops of one kind, stage and stream."""

    kind: OpKind
    stage: int
    stream: int


class Pair(NamedTuple):
    """Op ``i`` of class ``a`` and op ``j`` of class ``b``, whose order is open."""

    a: OpClass
    i: int
    b: OpClass
    j: int


@dataclass(frozen=True)
class OpenOrders:
    """The classes of a rank, and the memory that orders their ops.

    ``hosted``: (stage, stream), the lowest stage of a stream first. ``counts``: microbatches by
    stream. ``m_b``, ``m_w`` (by stage) and ``limit``: integers; the limit is None if there is none.
    """

    hosted: tuple[tuple[int, int], ...]
    counts: tuple[int, ...]
    m_b: list[int]
    m_w: list[int]
    limit: int | None

    def classes(self, *kinds: OpKind) -> list[OpClass]:
        return [OpClass(kind, *each) for each in self.hosted for kind in kinds]

    def ops(self, *kinds: OpKind) -> Iterator[tuple[OpClass, int]]:
        for each in self.classes(*kinds):
            for k in range(self.counts[each.stream]):
                yield each, k

    def place(self, each: OpClass) -> int:
        """The position of a class on its stream's route; W's come after all others."""
        return self._places[each]

    @cached_property
    def _places(self) -> dict[OpClass, int]:
        found = {}
        for each in self.classes(FORWARD, BACKWARD, WEIGHT):
            stages = self._stages(each.stream)
            at, back = stages.index(each.stage), 2 * len(stages) - 1
            behind = len(stages) if each.kind is WEIGHT else 0
            found[each] = at if each.kind is FORWARD else back - at + behind
        return found

    def beside(self, a: OpClass, b: OpClass, k: int) -> tuple[int, range]:
        """How many ops of ``a`` always run before b(k), and the range of those that may."""
        count = self.counts[a.stream]
        if a.stream != b.stream:
            return 0, range(count)
        if a == b:
            return k, range(0)
        if self.place(a) < self.place(b):
            return k + 1, range(k + 1, min(count, k + 1 + self.ahead(a, b)))
        first = max(0, k - self.ahead(b, a))
        return first, range(first, k)

    def ahead(self, a: OpClass, b: OpClass) -> int:
        """The largest i - j for which a(i) may run before b(j), a being earlier on the route."""
        if (a, b) not in self._ahead:
            self._ahead[a, b] = self._most_ahead(a, b)
        return self._ahead[a, b]

    @cached_property
    def _ahead(self) -> dict[tuple[OpClass, OpClass], int]:
        return {}

    def _most_ahead(self, a: OpClass, b: OpClass) -> int:
        most = self.counts[a.stream]
        if self.limit is None:
            return most
        held = self._held(a.stream, b if b.kind is WEIGHT else None)
        at, until = self.place(a), min(self.place(b), len(held) - 1)
        least = min(after for _, after in held[at : until + (b.kind is WEIGHT)])
        return most if least <= 0 else max(0, (self.limit - held[at][0]) // least)

    def _stages(self, stream: int) -> list[int]:
        return [stage for stage, of in self.hosted if of == stream]

    def _held(self, stream: int, late: OpClass | None) -> list[tuple[int, int]]:
        """The memory that a microbatch holds during and after each position of its route.

        All W's have run as soon as possible, except that of ``late``.
        """
        stages, held, found = self._stages(stream), 0, []
        for stage in stages:
            held += self.m_b[stage]
            found.append((held, held))
        for stage in reversed(stages):
            kept = self.m_w[stage] if late is not None and stage == late.stage else 0
            found.append((held, held - self.m_b[stage] + kept))
            held = found[-1][1]
        return found

    def pairs(self) -> Iterator[tuple[OpClass, OpClass]]:
        """Yield pairs of classes of one stream, in the order of the route; W's only with F's."""
        kinds = self.classes(FORWARD, BACKWARD, WEIGHT)
        for a, b in product(kinds, kinds):
            apart = {a.kind, b.kind} == {BACKWARD, WEIGHT} or a.kind is b.kind is WEIGHT
            if not apart and a.stream == b.stream and self.place(a) < self.place(b):
                yield a, b

    def literals(self) -> int:
        """The number of open pairs."""
        found = 0
        for a, b in self.pairs():
            count = self.counts[a.stream]
            apart = min(self.ahead(a, b), count - 1)
            found += apart * count - apart * (apart + 1) // 2
        for (_, one), (_, other) in product(self.hosted, self.hosted):
            if one < other:  # F's and B's of both, and W's of each with F's of the other
                found += 6 * self.counts[one] * self.counts[other]
        return found
