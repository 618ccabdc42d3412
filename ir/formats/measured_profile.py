"""A measured profile with the statistics of its times, and their conversion to JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..model.layered_profile import LayeredProfile
from ..model.ops import OpKind
from ..model.profile import Profile
from .profiles import dump_layers, dump_profile


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured time: the median of ``samples`` samples, in ms.

    ``spread``: their interquartile range divided by the median; 0 with a single sample.
    """

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
    """A profile with the statistics of its measured times, in ms.

    - ``times[s]``: the times of stage s, by kind of op: F, B, W; BW, unless stages are layers; R if
      recomputation was measured.
    - ``delay``: one-way time of a message with the size of the largest activation; None with a
      single process.
    - ``together``: whether all ranks were measured at the same time.
    - ``by_layers``: whether each stage is a single layer that was measured separately.
    - ``eager``: for each stage that was to run as a graph but ran eagerly, the reason.
    """

    profile: Profile
    times: tuple[Mapping[OpKind, Figure], ...]
    delay: Figure | None
    together: bool
    by_layers: bool = False
    eager: Mapping[int, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The profile as a JSON object; by layers if ``by_layers``, otherwise by stages."""
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
        """The statistics of the times as a JSON object, to be saved in addition to the profile."""
        return {
            "profile": self.profile.name,
            "together": self.together,
            "stages": [
                {f"t_{kind.name.lower()}": figure.to_dict() for kind, figure in stage.items()}
                | ({"eager": self.eager[s]} if s in self.eager else {})
                for s, stage in enumerate(self.times)
            ],
            "t_comm": None if self.delay is None else self.delay.to_dict(),
        }


def fused_time(times: Mapping[OpKind, Figure]) -> float | None:
    """T_BW in ms; None if BW was not measured or does not differ significantly from T_B + T_W.

    It differs significantly if the difference exceeds half the sum of the interquartile ranges of
    B, W and BW.
    """
    if OpKind.BW not in times:
        return None
    b, w, fused = (times[kind] for kind in (OpKind.B, OpKind.W, OpKind.BW))
    noise = sum(figure.median * figure.spread / 2 for figure in (b, w, fused))
    return fused.median if abs(fused.median - b.median - w.median) > noise else None
