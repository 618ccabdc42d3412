"""Linear inequalities, and the exact numbers of an instance that the arguments use."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import TypeAlias

from ..schedule_facts import Facts, MicrobatchFacts

MEMORY = Fraction(1, 10**9)  # relative tolerance of memory limits, for rounding errors
COUNTS = frozenset("acnopqrz")  # first letters of integer variables

Variable: TypeAlias = tuple[str, int]
Terms: TypeAlias = Mapping[Variable, Fraction]
Row: TypeAlias = tuple[Terms, Fraction]
Box: TypeAlias = dict[Variable, tuple[Fraction, Fraction]]


class NotProvenError(ValueError):
    """The certificate proves nothing, or less than is claimed."""


@dataclass(frozen=True, slots=True)
class WayFacts:
    """An alternative to holding M_B between F and B: recomputation or offload.

    ``again``: the time of R, ``wire``: the time of a copy in each direction, 0 if there is none;
    ``kept``: the memory held in the meantime.
    """

    again: Fraction
    kept: Fraction
    wire: Fraction


@dataclass(frozen=True, slots=True)
class LeastFacts:
    """The least time and memory that any microbatch of a stage needs, in exact numbers.

    If microbatches differ, each number is their minimum: a schedule remains valid if ops become
    shorter and sizes smaller. A BW that takes less than B and W counts as a B of at most that time
    and a W with the rest, as its gradient then only leaves earlier.
    """

    f: Fraction
    b: Fraction
    w: Fraction
    m_b: Fraction
    m_w: Fraction
    activation_bytes: float
    ways: tuple[WayFacts, ...]

    @property
    def kept(self) -> Fraction:
        """The least memory that a microbatch holds from F to B, in any way."""
        return min([self.m_b, *(way.kept for way in self.ways)])


def expect_alone(facts: Facts) -> None:
    """Raise NotProvenError if ops may run at once, or there is an update after each microbatch."""
    if facts.plan.updates == "microbatch":
        raise NotProvenError("argument: knows no updates by microbatch")
    for stage in facts.plan.profile.stages:
        if getattr(stage, "t_fb", None) is not None:
            raise NotProvenError("argument: knows no stages with t_fb")


def least_of(facts: Facts, stage: int) -> LeastFacts:
    """The least costs of a stage.

    Raises NotProvenError if microbatches differ and can be recomputed or offloaded.
    """
    every = [facts.at(stage, j) for j in range(facts.plan.microbatches)]
    f, b, w = (min(times) for times in zip(*map(times_of, every), strict=True))
    ways = _ways_of(facts, stage, every[0])
    if ways and any(own != every[0] for own in every):
        raise NotProvenError("argument: knows no unlike microbatches that are recomputed")
    m_b, m_w = (min(Fraction(getattr(own, key)) for own in every) for key in ("m_b", "m_w"))
    return LeastFacts(f, b, w, m_b, min(m_b, m_w), min(own.activation_bytes for own in every), ways)


def kept_of(facts: Facts, stage: int, own: MicrobatchFacts) -> Fraction:
    """The least memory that the microbatch holds from F to B, in any way."""
    return min([Fraction(own.m_b), *(way.kept for way in _ways_of(facts, stage, own))])


def times_of(own: MicrobatchFacts) -> tuple[Fraction, Fraction, Fraction]:
    """The least times of F, B and W."""
    f, b, w, fused = (Fraction(own.durations[kind]) for kind in ("F", "B", "W", "BW"))
    if fused < b + w:
        b, w = min(b, fused), max(Fraction(0), fused - b)
    return f, b, w


def _ways_of(facts: Facts, stage: int, own: MicrobatchFacts) -> tuple[WayFacts, ...]:
    """The ways in which the microbatch can be recomputed or offloaded."""
    found = []
    if "R" in own.durations and own.m_r is not None:
        found.append(WayFacts(Fraction(own.durations["R"]), Fraction(own.m_r), Fraction(0)))
    if "O" in own.durations and own.m_o is not None:
        found.append(WayFacts(Fraction(0), Fraction(own.m_o), Fraction(own.durations["O"])))
    return tuple(found)


class FractionalChoice:
    """A fractional knapsack of items (size, time); those with most time per size come first."""

    def __init__(self, things: Iterable[tuple[Fraction, Fraction]]) -> None:
        every = list(things)
        sized = sorted((x for x in every if x[0] > 0), key=lambda x: x[1] / x[0], reverse=True)
        free = sum((time for size, time in every if size <= 0), Fraction(0))
        self._rates = [time / size for size, time in sized]
        self._sizes = list(accumulate((size for size, _ in sized), initial=Fraction(0)))
        self._times = list(accumulate((time for _, time in sized), initial=free))

    def most(self, room: Fraction) -> Fraction:
        """Upper bound on the total time of any items that fit in ``room``."""
        at = max(0, bisect_right(self._sizes, room) - 1)
        if at == len(self._rates):
            return self._times[-1]
        return self._times[at] + max(Fraction(0), room - self._sizes[at]) * self._rates[at]
