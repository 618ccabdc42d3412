"""The inequalities between the moments of ranks: argument ``rank-moments`` of a certificate.

For ranks with several stages, and for microbatches that go both ways. A *class* is a stage of a
*stream*, the microbatches that run every stage on the same ranks; its number is S times the
stream's and the stage's. The moments of class u: S its first F starts, y its first B starts, t its
last F starts, V its last B ends. Of a rank::

    R ── n F's ── Y ── F's, B's, W's ── T ── one F, a B's, r W's ── L ── W's ── E

R its first op starts, the S of a stream's lowest class there; Y the first B, the y of a stream's
highest; T the last F, the t of a highest; L the last B ends, the V of a lowest; E the last op ends.
Which stream's it is say pR, pY, pT, pL, 1 for that stream. n F's of a class come before Y; at T, a
of them have B and W to come, the last F's microbatch one of each class of its stream, and q have W
alone, of which r run before L. No span is more than the bound: 1 - p in its unit lifts "is".

Each line fits between its moments whether or not the rank idles, and memory holds M_B from F to the
end of B, M_W from there to the end of W. Where microbatches go one way, all but what can have run
before the first B of a stage, or can be left at its last F (:mod:`.rank_ends`), runs after the one,
before the other, and between both where memory does not hold all of the lower one.

``held``: up to its B a microbatch holds M_B for its round trip and T_B; the rank holds at most its
room, x after R at most the largest M_B and x times the largest M_B / T_F, x before L likewise with
T_B, and in between, while a W runs, what has room beside the least M_W. ``held to the end``: with
M_W for T_W, x before E likewise with the largest of M_B / (T_B + T_W) and M_W / T_W.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import isfinite

from ..schedule_facts import Facts
from .rank_ends import RankEnds, lost_at_ends
from .rows import MEMORY, Box, NotProvenError, Row, expect_alone, least_of

ZERO, ONE = Fraction(0), Fraction(1)


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """A stage of ``count`` microbatches, in exact numbers; ``down``: to the next, ``up``: back."""

    number: int
    stream: int
    rank: int
    count: int
    f: Fraction
    b: Fraction
    w: Fraction
    m_b: Fraction
    m_w: Fraction
    down: Fraction
    up: Fraction


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The instance by classes; ``limit``: by rank, None where there is none."""

    makespan: bool
    streams: Sequence[Sequence[ClassFacts]]
    limit: Sequence[Fraction | None]

    @classmethod
    def of(cls, facts: Facts) -> RankFacts:
        """Raises NotProvenError where the argument does not speak of the instance."""
        expect_alone(facts)
        plan = facts.plan
        if plan.passing == "weights" or facts.moves:
            raise NotProvenError("argument: rank-moments: expected weights that stay")
        places = {(run.stage, run.microbatch): run.rank for run in facts.runs}
        groups: defaultdict[tuple[int, ...], int] = defaultdict(int)
        for j in range(plan.microbatches):
            groups[tuple(places[s, j] for s in range(plan.stages))] += 1
        streams = [
            list(_stream(facts, n, ranks, groups[ranks])) for n, ranks in enumerate(sorted(groups))
        ]
        if len({frozenset(ranks) for ranks in groups}) > 1:
            raise NotProvenError("argument: rank-moments: expected stages of each way on each rank")
        limits = [Fraction(x) * (1 + MEMORY) if isfinite(x) else None for x in facts.limit]
        return cls(facts.report.objective == "makespan", streams, limits)

    def ranks(self) -> dict[int, list[list[ClassFacts]]]:
        """The classes of each rank that has any, by stream, the lowest stage first."""
        found: defaultdict[int, list[list[ClassFacts]]] = defaultdict(list)
        for stream in self.streams:
            for rank in dict.fromkeys(own.rank for own in stream):
                found[rank].append([own for own in stream if own.rank == rank])
        return found

    def box(self) -> Box:
        """Some rank starts at 0 and ends within one; each other has a class whose first F comes
        before an op of that rank, so that it starts within one, and ends within one of that."""
        box: Box = {}
        for own in (own for stream in self.streams for own in stream):
            box |= {(k, own.number): (ZERO, Fraction(2)) for k in "SytV"}
            box |= {(k, own.number): (ZERO, Fraction(own.count)) for k in "naqr"}
        for rank, streams in self.ranks().items():
            box |= {(k, rank): (ZERO, Fraction(2)) for k in "RYTLE"}
            least = ONE if len(streams) == 1 else ZERO
            for low, high in ((own[0], own[-1]) for own in streams):
                box |= {(k, low.number): (least, ONE) for k in ("pR", "pL")}
                box |= {(k, high.number): (least, ONE) for k in ("pY", "pT")}
        return box

    def rows(self, unit: Fraction) -> Iterator[tuple[str, int, Row]]:
        """Each inequality with its name and number, of a class or of a rank; times in ``unit``."""
        yield from self._class_rows(unit)
        for rank, streams in self.ranks().items():
            for name, row in _of_rank(rank, streams, unit):
                if name != "between" or self._waits(rank, streams):
                    yield name, rank, row
            start = {} if self.makespan else {("R", rank): ONE}
            yield "cost", rank, ({("C", 0): ONE, ("E", rank): -ONE} | start, ZERO)
            for name, row in _memory(streams, self.limit[rank]):
                yield name, rank, row
            yield from _picked(rank, streams)
            for name, row in self._held(rank, streams, unit):
                yield name, rank, row
            limit = self.limit[rank]
            if len(streams) == 1 and limit:
                yield from _of_ends(rank, streams[0], limit, unit)

    def _class_rows(self, unit: Fraction) -> Iterator[tuple[str, int, Row]]:
        for own in (own for stream in self.streams for own in stream):
            fits = self.limit[own.rank]
            waits = fits is not None and own.count * own.m_b > fits
            for name, row in _of_class(own, self._turn(own) / unit, unit, waits):
                yield name, own.number, row
        for own, later in (pair for stream in self.streams for pair in pairwise(stream)):
            for name, row in _onwards(own, later, unit):
                yield name, own.number, row

    def _waits(self, rank: int, streams: Sequence[Sequence[ClassFacts]]) -> bool:
        """Whether memory does not hold all F's, so that the last waits for a B."""
        limit, held = self.limit[rank], sum(own.count * own.m_b for s in streams for own in s)
        return limit is not None and held > limit

    def _held(
        self, rank: int, streams: Sequence[Sequence[ClassFacts]], unit: Fraction
    ) -> Iterator[tuple[str, Row]]:
        """The spans from R to L, and to E, in which what microbatches hold has room."""
        classes, limit = [own for stream in streams for own in stream], self.limit[rank]
        if limit is None or any(own.m_b == 0 for own in classes):
            return
        needed = sum((own.count * own.m_b * (self._turn(own) + own.b) for own in classes), ZERO)
        room, largest = room_for(classes, limit), max(own.m_b for own in classes)
        if room < largest:
            return
        rise, fall = [(own.m_b, own.f) for own in classes], [(own.m_b, own.b) for own in classes]
        span = sum((own.count * (own.f + own.b) for own in classes), ZERO)
        lost, ramps = lost_at_ends(room, largest, (rise, fall), span)
        taken = (room - room_for(classes, limit - min(own.m_w for own in classes))) / room
        weights = sum((own.count * own.w for own in classes), ZERO)
        late = {("L", rank): ONE, ("R", rank): -ONE}
        for own in classes:
            late |= {(k, own.number): taken * own.w / unit for k in "aq"}
            late["r", own.number] = -taken * own.w / unit
        yield "held", (late, ((needed + lost) / room + taken * (weights - ramps)) / unit)
        needed += sum((own.count * own.m_w * own.w for own in classes), ZERO)
        fall = [(own.m_b, own.b + own.w) for own in classes]
        fall += [(own.m_w, own.w) for own in classes if own.m_w]
        lost, _ = lost_at_ends(limit, largest, (rise, fall), span + weights)
        end = {("E", rank): ONE, ("R", rank): -ONE}
        yield "held to the end", (end, (needed + lost) / limit / unit)

    def _turn(self, of: ClassFacts) -> Fraction:
        """From the start of a microbatch's F to that of its B, at least."""
        after = [own for own in self.streams[of.stream] if own.number > of.number]
        later = sum((own.f + own.b + own.down + own.up for own in after), ZERO)
        return of.f + of.down + of.up + later


def room_for(classes: Sequence[ClassFacts], limit: Fraction) -> Fraction:
    """The most that the rank holds: a whole number of M_B's where all are equal."""
    size = classes[0].m_b
    if size > 0 and all(own.m_b == size for own in classes):
        return limit // size * size
    return limit


def _of_ends(
    rank: int, own: Sequence[ClassFacts], limit: Fraction, unit: Fraction
) -> Iterator[tuple[str, int, Row]]:
    """All runs in between but what can have run before a first B or be left at a last F."""
    ends = RankEnds(own, limit)
    before, left = ([of(i) / unit for i in range(len(own))] for of in (ends.before, ends.left))
    work = ends.work / unit
    for i, first in enumerate(own):
        y, t = ("y", first.number), ("t", first.number)
        yield "after the first B", first.number, ({("E", rank): ONE, y: -ONE}, work - before[i])
        yield "until the last F", first.number, ({t: ONE, ("R", rank): -ONE}, work - left[i])
        for j, last in enumerate(own):
            if not ends.all_fit(min(i, j)):
                row = {("t", last.number): ONE, y: -ONE}, max(ZERO, work - before[i] - left[j])
                yield f"between and {last.number}", first.number, row


def _stream(facts: Facts, number: int, ranks: Sequence[int], count: int) -> Iterator[ClassFacts]:
    delay, stages = facts.network.delay, facts.plan.stages
    for s, rank in enumerate(ranks):
        own, down, up = least_of(facts, s), ZERO, ZERO
        if s + 1 < stages:
            hop = ranks[s + 1], own.activation_bytes
            down, up = (Fraction(delay(rank, *hop)), Fraction(delay(hop[0], rank, hop[1])))
        sizes = own.kept, min(own.m_w, own.kept)
        place = number * stages + s, number, rank, count
        yield ClassFacts(*place, own.f, own.b, own.w, *sizes, down, up)


def _of_class(
    own: ClassFacts, turn: Fraction, unit: Fraction, waits: bool
) -> Iterator[tuple[str, Row]]:
    f, b, m = own.f / unit, own.b / unit, own.count

    def of(name: str, least: Fraction | int, **terms: int) -> tuple[str, Row]:
        return name, ({(k, own.number): Fraction(v) for k, v in terms.items()}, Fraction(least))

    yield of("first round trip", turn, y=1, S=-1)
    yield of("last round trip", turn + b, V=1, t=-1)
    yield of("all F's", f * (m - 1), t=1, S=-1)
    yield of("all B's", b * m, V=1, y=-1)
    yield of("microbatches", -m, a=-1, q=-1)
    yield of("W's", 0, a=1, q=1, r=-1)
    if waits:  # memory does not hold all of the class
        yield of("F's after B", b, t=1, y=-1)


def _onwards(own: ClassFacts, later: ClassFacts, unit: Fraction) -> Iterator[tuple[str, Row]]:
    there = (own.f + own.down) / unit
    for name, k in (("first F on", "S"), ("last F on", "t")):
        yield name, ({(k, later.number): ONE, (k, own.number): -ONE}, there)
    back = {"first B back": ("y", later.b + own.up), "last B back": ("V", own.b + own.up)}
    for name, (k, time) in back.items():
        yield name, ({(k, own.number): ONE, (k, later.number): -ONE}, time / unit)


def _of_rank(
    rank: int, streams: Sequence[Sequence[ClassFacts]], unit: Fraction
) -> Iterator[tuple[str, Row]]:
    classes = [own for stream in streams for own in stream]
    last = {("pT", s[-1].number): s[-1].f / unit for s in streams}
    ahead = {("n", own.number): own.f / unit for own in classes}
    pending = {("a", own.number): (own.b + own.w) / unit for own in classes}
    weights = {("q", own.number): own.w / unit for own in classes}
    after = {("a", own.number): -own.b / unit for own in classes}
    early = {("r", own.number): -own.w / unit for own in classes}
    late = {(k, own.number): own.w / unit for own in classes for k in "aq"} | early
    all_f = sum(own.count * own.f for own in classes) / unit
    work = sum(own.count * (own.f + own.b + own.w) for own in classes) / unit

    def between(start: str, end: str) -> dict[tuple[str, int], Fraction]:
        return {(end, rank): ONE, (start, rank): -ONE}

    yield "F's ahead", (between("R", "Y") | _minus(ahead), ZERO)
    yield "all F's of the rank", (between("R", "T") | last, all_f)
    yield "between", (between("Y", "T") | ahead | pending | weights | last, work)
    yield "last B's", (between("T", "L") | _minus(last) | after | early, ZERO)
    yield "to the last B", (between("Y", "L") | ahead | late, work)
    yield "last W's", (between("L", "E") | _minus(late), ZERO)
    for own in classes:
        yield f"end of {own.number}", ({("E", rank): ONE, ("V", own.number): -ONE}, own.w / unit)


def _minus(terms: dict[tuple[str, int], Fraction]) -> dict[tuple[str, int], Fraction]:
    return {variable: -factor for variable, factor in terms.items()}


def _memory(
    streams: Sequence[Sequence[ClassFacts]], limit: Fraction | None
) -> Iterator[tuple[str, Row]]:
    """Memory at Y, at T and as the last B runs, in units of the limit; none without a limit."""
    if not limit:
        return
    classes = [own for stream in streams for own in stream]
    m_b = {own.number: own.m_b / limit for own in classes}
    m_w = {own.number: own.m_w / limit for own in classes}
    waits = {("q", n): -size for n, size in m_w.items()}
    yield "memory ahead", ({("n", n): -size for n, size in m_b.items()}, -ONE)
    yield "memory pending", ({("a", n): -size for n, size in m_b.items()} | waits, -ONE)
    late = {("a", n): -size for n, size in m_w.items()} | waits
    late |= {("r", n): size for n, size in m_w.items()}
    lowest = {("pL", s[0].number): m_w[s[0].number] - m_b[s[0].number] for s in streams}
    yield "memory at the last B", (late | lowest, -ONE)
    if len(set(m_b.values())) == 1 and classes[0].m_b > 0:
        fit = limit // classes[0].m_b
        yield "places ahead", (dict.fromkeys((("n", n) for n in m_b), -ONE), Fraction(-fit))
        yield "places pending", (dict.fromkeys((("a", n) for n in m_b), -ONE), Fraction(-fit))


def _picked(rank: int, streams: Sequence[Sequence[ClassFacts]]) -> Iterator[tuple[str, int, Row]]:
    """The rank's moment is the first or last of its streams', and that of the one with p = 1."""
    low, high = [s[0].number for s in streams], [s[-1].number for s in streams]
    picks = (("R", "S", low, 1), ("Y", "y", high, 1), ("T", "t", high, -1), ("L", "V", low, -1))
    for moment, of, numbers, sign in picks:
        pick = f"p{moment}"
        yield f"a {pick}", rank, (dict.fromkeys(((pick, n) for n in numbers), ONE), ONE)
        for n in numbers:
            bounds = {(of, n): Fraction(sign), (moment, rank): Fraction(-sign)}
            yield f"{moment} within", n, (bounds, ZERO)
            yield f"{moment} is", n, (_minus(bounds) | {(pick, n): -ONE}, -ONE)
    for stream in streams:
        for own in stream:
            first, last = ("pY", stream[-1].number), ("pT", stream[-1].number)
            yield "first B's F", own.number, ({("n", own.number): ONE, first: -ONE}, ZERO)
            yield "last F's B", own.number, ({("a", own.number): ONE, last: -ONE}, ZERO)
        n = stream[0].number
        late = {("a", n): ONE, ("q", n): ONE, ("r", n): -ONE, ("pL", n): -ONE}
        yield "last B's W", n, (late, ZERO)
