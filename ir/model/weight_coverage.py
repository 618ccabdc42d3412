"""Which weight gradients of a stage W computes, and which its B has already computed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NAMED = 3  # most names in one line; names that differ only in their numbers count as one
ENOUGH = 0.99  # a stage with this share in W or more is listed only on request


@dataclass(frozen=True, slots=True)
class WeightCoverage:
    """The parameters of one stage that got a gradient: name in the model and number of elements.

    ``in_w``: parameters whose gradient W computed. ``in_b``: those whose gradient B computed, at
    least in part. ``str`` gives
    ``W computes 99.6 % of stage 1's gradients; in B: experts.*.weight``.
    """

    stage: int
    in_w: Mapping[str, int]
    in_b: Mapping[str, int]

    @property
    def share(self) -> float:
        """The share of W in all elements, from 0 to 1; 1 if there are none."""
        in_b = sum(self.in_b.values())
        return 1 - in_b / ((sum(self.in_w.values()) + in_b) or 1)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object: number of elements, share of W, and the elements in B by name."""
        elements = sum(self.in_w.values()) + sum(self.in_b.values())
        return {"elements": elements, "share": self.share, "in_b": dict(self.in_b)}

    def __str__(self) -> str:
        return self.of(f"stage {self.stage}")

    def of(self, part: str) -> str:
        """The line of text, in which the stage is called ``part``."""
        # rounded down, so that 100 % means all
        words = f"W computes {math.floor(1e3 * self.share) / 10:g} % of {part}'s gradients"
        return f"{words}; in B: {_shown(self.in_b)}" if self.in_b else words


def joined(found: Iterable[Mapping[int, WeightCoverage]]) -> dict[int, WeightCoverage]:
    """Merge the coverage that several ranks found into one entry per stage."""
    merged: dict[int, WeightCoverage] = {}
    for row in found:
        for stage, one in row.items():
            other = merged.get(stage, one)
            in_b = {**other.in_b, **one.in_b}
            in_w = {k: n for k, n in {**other.in_w, **one.in_w}.items() if k not in in_b}
            merged[stage] = WeightCoverage(stage, in_w, in_b)
    return dict(sorted(merged.items()))


def worth_telling(coverage: Iterable[WeightCoverage]) -> list[WeightCoverage]:
    """The stages in which B computes more than 1 % of the elements."""
    return [one for one in coverage if one.share < ENOUGH]


def _shown(elements: Mapping[str, int]) -> str:
    """The largest names first; names that differ only in their numbers are merged."""
    sizes: dict[str, int] = {}
    for name, count in elements.items():
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
        sizes[pattern] = sizes.get(pattern, 0) + count
    names = sorted(sizes, key=lambda name: -sizes[name])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
