"""A profile with times and sizes of each layer, which can be cut into stages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from .profile import Profile, StageProfile

_SUMMED = ("t_f", "t_b", "t_w", "m_b", "m_w")
_SUMMED_WHERE_KNOWN = (
    "weight_bytes", "grad_bytes", "optimizer_bytes", "t_r", "m_r", "m_o",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayeredProfile:
    """Layers in forward order, each with its own times and sizes.

    ``tied[i]``: whether layers i and i+1 must be in the same stage. ``cluster``: all other fields
    of the profile; it has no stages, and its ``tied`` lists the groups of layers, by index, that
    share parameters.
    """

    layers: tuple[StageProfile, ...]
    tied: tuple[bool, ...]
    cluster: Profile

    @property
    def ranks(self) -> int:
        return self.cluster.ranks

    @property
    def as_stages(self) -> Profile:
        """The profile with each layer as a stage."""
        return replace(self.cluster, stages=self.layers)

    def cut(self, starts: Sequence[int]) -> Profile:
        """The profile whose stages begin at the layers ``starts`` (indices, ascending from 0).

        Raises UnsupportedError if there are more than ``max_stages`` stages.
        """
        self.cluster.check_stages(len(starts))
        ends = pairwise((*starts, len(self.layers)))
        stages = tuple(joined(self.layers[a:b]) for a, b in ends)
        return replace(self.cluster, stages=stages, tied=self._tied_stages(starts))

    def _tied_stages(self, starts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The groups of stages that share parameters if stages begin at the layers ``starts``."""
        stages_of = (
            {bisect_right(starts, layer) - 1 for layer in group} for group in self.cluster.tied
        )
        return tuple(sorted({tuple(sorted(stages)) for stages in stages_of if len(stages) > 1}))


def joined(stages: Sequence[StageProfile]) -> StageProfile:
    """Return the profile of one stage that consists of consecutive ``stages``.

    Times and memory are summed, for each microbatch if microbatches differ; a sum with an unknown
    part is None. ``activation_bytes`` is that of the last stage.
    """
    number = max(len(stage.each) for stage in stages)
    if number:
        columns = ([stage.at(j) for stage in stages] for j in range(number))
        return StageProfile.of(tuple(map(joined, columns)))
    total = {key: sum(getattr(stage, key) for stage in stages) for key in _SUMMED}
    for key in _SUMMED_WHERE_KNOWN:
        parts = [getattr(stage, key) for stage in stages]
        total[key] = None if None in parts else sum(parts)
    total["t_fb"] = _at_once(stages)
    if any(stage.t_bw is not None for stage in stages):
        total["t_bw"] = sum(stage.fused for stage in stages)
    total["offload_bytes"] = _offloaded(stages)
    layers = tuple(chain.from_iterable(stage.layers for stage in stages))
    return replace(stages[-1], **total, layers=layers)


def _at_once(stages: Sequence[StageProfile]) -> float | None:
    """``t_fb`` of the joined stage: the sum over the stages; None if no stage has ``t_fb``.

    Stages without ``t_fb`` count as running F and BW one after the other.
    """
    if all(stage.t_fb is None for stage in stages):
        return None
    return sum(stage.t_f + stage.fused - stage.saving for stage in stages)


def _offloaded(stages: Sequence[StageProfile]) -> float | None:
    """``offload_bytes`` of the joined stage: the sum of the bytes that each stage copies one way.

    It is None if a stage cannot be offloaded. It is also None if no stage has ``offload_bytes``, as
    M_B - ``m_o`` of the joined stage then applies.
    """
    if all(s.offload_bytes is None for s in stages) or any(s.m_o is None for s in stages):
        return None
    return sum(stage.moved for stage in stages)
