"""A measured profile and what stands behind its times, with the JSON of both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..model.layered_profile import LayeredProfile
from ..model.ops import OpKind
from ..model.profile import Profile
from ..model.weight_coverage import WeightCoverage
from .profile_json import dump_layers, dump_profile


@dataclass(frozen=True, slots=True)
class Figure:
    """A median and how far the middle half of its samples spreads, relative to it."""

    median: float
    spread: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Figure:
        if len(samples) < 2:
            return cls(samples[0], 0.0, 1)
        lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, (upper - lower) / median if median > 0 else 0.0, len(samples))

    def to_dict(self) -> dict[str, float]:
        return {"median": self.median, "spread": self.spread, "samples": self.samples}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A profile and what stands behind its times.

    ``times[s]``: milliseconds of F, B, W and BW of stage s, without the latter of a layer, and of R
    where it was asked for; none where bytes alone were calculated; ``pairs[s]``: of an F and a BW
    at once, where that was; ``delay``: one-way milliseconds of a message as large as the largest
    activation (None: one process);
    ``together``: whether the ranks were measured at the same time; ``by_layers``: each stage is a
    layer that was measured by itself; ``coverage[s]``: which weight gradients W computed, as the
    stages ran here; ``eager``: why stages that were to be graphs ran as they are.
    """

    profile: Profile
    times: tuple[Mapping[OpKind, Figure], ...]
    delay: Figure | None
    together: bool
    pairs: tuple[Figure, ...] = ()
    by_layers: bool = False
    coverage: tuple[WeightCoverage, ...] = ()
    eager: Mapping[int, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The profile as a JSON object, by layers where they were measured so."""
        profile = self.profile
        if self.by_layers:
            apart = (False,) * profile.num_stages
            cluster = replace(profile, stages=())
            found = dump_layers(LayeredProfile(profile.stages, apart, cluster))
        else:
            found = dump_profile(profile)
        limits = set(found.get("memory_limit") or ())
        return found | ({"memory_limit": limits.pop()} if len(limits) == 1 else {})

    def record(self) -> dict[str, object]:
        """The spreads as a JSON object, to keep beside the profile."""
        return {
            "profile": self.profile.name,
            "together": self.together,
            "stages": [
                {f"t_{kind.name.lower()}": figure.to_dict() for kind, figure in stage.items()}
                | ({"t_fb": self.pairs[s].to_dict()} if self.pairs else {})
                | ({"coverage": self.coverage[s].to_dict()} if self.coverage else {})
                | ({"eager": self.eager[s]} if s in self.eager else {})
                for s, stage in enumerate(self.times)
            ],
            "t_comm": None if self.delay is None else self.delay.to_dict(),
        }


MIDDLE_HALF = 1.349
"""Standard deviations that the middle half of a normal distribution spans."""


def spread_of(times: Mapping[OpKind, Figure]) -> float | None:
    """The relative standard deviation of a stage's ops, kind by kind and then the root of the mean
    square by time; None where samples do not differ.

    It follows from the middle halves, so that one op that was held up does not count.
    """
    figures = [times[kind] for kind in times if not kind.copies and times[kind].samples > 1]
    total = math.fsum(figure.median for figure in figures)
    squares = math.fsum(f.median * (f.spread / MIDDLE_HALF) ** 2 for f in figures)
    return min(math.sqrt(squares / total), 1.0) if squares > 0 else None


def fused_time(times: Mapping[OpKind, Figure]) -> float | None:
    """T_BW; None where it was not measured, or is T_B + T_W as far as the samples tell.

    They do where it is further off than the three middle halves of samples, each by half of its
    range.
    """
    if OpKind.BW not in times:
        return None
    b, w, fused = (times[kind] for kind in (OpKind.B, OpKind.W, OpKind.BW))
    noise = sum(figure.median * figure.spread / 2 for figure in (b, w, fused))
    return fused.median if abs(fused.median - b.median - w.median) > noise else None
