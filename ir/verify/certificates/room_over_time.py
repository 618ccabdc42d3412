"""Room over time: the inequalities ``held`` of :mod:`.linear`, by weights of sizes.

Weights of sizes in limits that sum to at most 1 for all that fits together: the sizes; floor((n +
1) x) / n of each, x where that is whole (Fekete and Schepers, Math. Program. 91, 2001); or places,
one of each M_B, where what is beside it while a W runs, or the F of what is recomputed, takes up
those that are then too few. A microbatch that stays weighs its M_B for
its round trip and T_B; else for its R, or its F and both copies, and T_B, and what it keeps for the
rest of the trip; a W weighs M_W while it runs. That sum is at most the time from S to V, in which
all but the last W's run, or to e, less what is lost at both ends: x after S at most 1 + x / f (in
whole numbers) F's have begun, x before V at most 1 + x / b B's are to come, x before e 1 + x / (b +
w), so that no more than as many M_B's are held. All M are, at the latest after M f and before M b:
these times do not meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from .rows import LeastFacts, WayFacts

ZERO = Fraction(0)
WEIGHTS = 16  # n of the weights, at most


@dataclass(frozen=True, slots=True)
class SizeWeights:
    """Weights of M_B, of M_W and by way of what is kept; ``run``: what a W (0) and the F of a way
    weigh more while they run."""

    m_b: Fraction
    m_w: Fraction
    kept: Sequence[Fraction]
    run: Sequence[Fraction]


def weights(
    own: LeastFacts, limit: Fraction, ways: Mapping[int, WayFacts]
) -> Iterator[tuple[str, SizeWeights]]:
    """The weights of a stage, each with a name; ``ways``: by number those that are of use."""
    nothing = [ZERO] * (1 + max(ways, default=0))
    places = limit // own.m_b
    if places:
        run = list(nothing)
        run[0] = 1 - (limit - own.m_w) // own.m_b / Fraction(places)
        for k, way in ways.items():
            if way.again:
                run[k] = 1 - (limit - way.kept) // own.m_b / Fraction(places)
        yield "held in places", SizeWeights(1 / Fraction(places), ZERO, list(nothing), run)
    for n in range(WEIGHTS + 1):
        kept = list(nothing)
        for k, way in ways.items():
            kept[k] = _weight(way.kept / limit, n)
        m_b, m_w = (_weight(size / limit, n) for size in (own.m_b, own.m_w))
        if m_b:
            yield f"held by {n}", SizeWeights(m_b, m_w, kept, nothing)


def _weight(size: Fraction, n: int) -> Fraction:
    parts = (n + 1) * size
    return size if not n or parts.denominator == 1 else Fraction(floor(parts), n)


def lost_while_filling(room: Fraction, size: Fraction, every: Fraction, most: int) -> Fraction:
    """The area of ``room`` that stays empty, as it is filled by ``size``, each ``every``."""
    steps = max(0, min(most, int(room / size)))
    return every * (steps * room - size * steps * (steps + 1) / 2)
