"""Amounts (times, sizes) as integers: exact if they are decimals, otherwise rounded down."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_DENOMINATORS = tuple(10**digits for digits in range(7))
_NOISE = 1e-13  # relative error of a decimal read into a float and scaled
_SUMS = 1e-12  # relative error of a cost that floats were summed to


@dataclass(frozen=True, slots=True)
class Ticks:
    """A unit for integer amounts, the tick: ``per_unit`` ticks make one unit of the profile.

    ``exact``: whether all amounts for which the tick was chosen are whole numbers of ticks.
    """

    per_unit: float
    exact: bool

    @classmethod
    def of(cls, amounts: Iterable[float], largest: float, *, bits: int = 30) -> Ticks:
        """Choose the ticks for ``amounts``. ``largest``: an upper bound on sums of amounts.

        The ticks are exact, and as long as possible, if all amounts are decimals with up to six
        digits after the point, and ``largest`` in units of the last of these digits is below
        2^(bits + 8). Otherwise ``largest`` is 2^bits ticks.
        """
        values = [value for value in amounts if value > 0]
        for denominator in _DENOMINATORS:
            if largest * denominator < 2 ** (bits + 8) and _whole(values, denominator):
                common = math.gcd(*(round(value * denominator) for value in values)) or 1
                return cls(denominator / common, True)
        return cls(2**bits / largest, False)

    def down(self, amount: float) -> int:
        """``amount`` in ticks, rounded down; if ticks are exact, rounded to the nearest tick."""
        ticks = amount * self.per_unit
        return round(ticks) if self.exact else math.floor(ticks)

    def least(self, cost: float) -> int:
        """A lower bound, in ticks, on the cost of any schedule that costs at least ``cost``.

        The cost in ticks is computed from the schedule's times in ticks.
        """
        ticks = cost * self.per_unit * (1 - _SUMS)
        return math.ceil(ticks - 1e-6) if self.exact else math.floor(ticks)

    def most(self, cost: float) -> int:
        """An upper bound, in ticks, on the cost of any schedule that costs at most ``cost``.

        The cost in ticks is computed from the schedule's times in ticks. If ticks are not exact,
        starts are rounded down, which may lengthen a span by up to a tick.
        """
        ticks = math.floor(cost * self.per_unit * (1 + _SUMS) + 1e-6)
        return ticks if self.exact else ticks + 1


def _whole(values: list[float], denominator: int) -> bool:
    scaled = [value * denominator for value in values]
    return all(abs(v - round(v)) <= _NOISE * v for v in scaled)
