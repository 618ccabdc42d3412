"""The weight gradients of a stage that W computes, and those that its B has computed already."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NAMED = 3  # parameters, those of one name but for numbers taken as one, that a line names
ENOUGH = 0.99  # of a stage's elements: what is said only where it is asked for


@dataclass(frozen=True, slots=True)
class WeightCoverage:
    """The parameters of one stage that got a gradient, with their elements, by the model's names.

    ``in_w``: those whose gradient W computed, ``in_b``: those of which B computed it, or a part. It
    prints as ``W computes 99.6 % of stage 1's gradients; in B: experts.*.weight``.
    """

    stage: int
    in_w: Mapping[str, int]
    in_b: Mapping[str, int]

    @property
    def share(self) -> float:
        """The share of W in all elements, from 0 to 1; 1 where there are none."""
        in_b = sum(self.in_b.values())
        return 1 - in_b / ((sum(self.in_w.values()) + in_b) or 1)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object: elements, the share of W, and the elements by name that are in B."""
        elements = sum(self.in_w.values()) + sum(self.in_b.values())
        return {"elements": elements, "share": self.share, "in_b": dict(self.in_b)}

    def __str__(self) -> str:
        return self.of(f"stage {self.stage}")

    def of(self, part: str) -> str:
        """The line, in which the stage is called ``part``."""
        # rounded down: what is not all of them does not read as 100 %
        words = f"W computes {math.floor(1e3 * self.share) / 10:g} % of {part}'s gradients"
        return f"{words}; in B: {_shown(self.in_b)}" if self.in_b else words


def joined(found: Iterable[Mapping[int, WeightCoverage]]) -> dict[int, WeightCoverage]:
    """One for each stage, of those that several ranks found."""
    merged: dict[int, WeightCoverage] = {}
    for row in found:
        for stage, one in row.items():
            other = merged.get(stage, one)
            in_b = {**other.in_b, **one.in_b}
            in_w = {k: n for k, n in {**other.in_w, **one.in_w}.items() if k not in in_b}
            merged[stage] = WeightCoverage(stage, in_w, in_b)
    return dict(sorted(merged.items()))


def worth_telling(coverage: Iterable[WeightCoverage]) -> list[WeightCoverage]:
    """Coverage of the stages of which B computes more than a hundredth."""
    return [one for one in coverage if one.share < ENOUGH]


def _shown(elements: Mapping[str, int]) -> str:
    """The largest first; names that differ by numbers alone as one."""
    sizes: dict[str, int] = {}
    for name, count in elements.items():
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
        sizes[pattern] = sizes.get(pattern, 0) + count
    names = sorted(sizes, key=lambda name: -sizes[name])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
