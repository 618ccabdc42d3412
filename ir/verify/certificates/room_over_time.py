"""Memory over time: the inequalities "held" of :mod:`.linear`, by weights of sizes.

Weights are numbers for sizes such that the weights of all sizes that fit in memory together sum to
at most 1. Three kinds are used, for sizes x as parts of the limit:

- x itself.
- floor((n + 1) x) / n, or x where (n + 1) x is an integer: a dual feasible function (Fekete and
  Schepers, Math. Program. 91, 2001).
- Places: the memory has floor(limit / M_B) places, one for each M_B. While a W runs, or the F of a
  microbatch that will be recomputed, there are fewer, and the op has the weight of the missing
  ones.

A microbatch that stays has the weight of its M_B during its round trip and T_B. Otherwise, it has
it during its R, or its F and both copies, and T_B, and the weight of what it keeps during the rest
of the round trip. A W has the weight of M_W while it runs. The sum of weight times time is at most
the time from S to V, in which all W's but the last ones run, or to e, less what is lost at both
ends: x after S, at most 1 + x / f (rounded down) F's have begun; x before V, at most 1 + x / b B's
are to come; x before e, at most 1 + x / (b + w). At most so many M_B's are held. The two periods do
not overlap: the first ends M f after S or earlier, the second begins M b before V or later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from .rows import LeastFacts, WayFacts

ZERO = Fraction(0)
WEIGHTS = 16  # largest n of the weights


@dataclass(frozen=True, slots=True)
class SizeWeights:
    """The weights of M_B, of M_W, and of what each way keeps.

    ``run``: additional weight of ops while they run: of a W (index 0), and of the F of each way.
    """

    m_b: Fraction
    m_w: Fraction
    kept: Sequence[Fraction]
    run: Sequence[Fraction]


def weights(
    own: LeastFacts, limit: Fraction, ways: Mapping[int, WayFacts]
) -> Iterator[tuple[str, SizeWeights]]:
    """The weights for a stage, each with its name; ``ways``: the useful ways by number."""
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
    """The area above the steps while ``room`` is filled with ``size`` at intervals of ``every``.

    ``most``: the largest number of steps.
    """
    steps = max(0, min(most, int(room / size)))
    return every * (steps * room - size * steps * (steps + 1) / 2)
