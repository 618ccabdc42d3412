"""Profiles in which one thing is scaled: the microbatch's size, or the messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeloom.ir.model.profile import Profile, StageProfile


def enlarged(profile: Profile, size: float) -> Profile:
    """Microbatches ``size`` times as large: times and activations grow with them, weights do not.

    Delays follow from the links alone.
    """
    grown = _scaled(profile, size, ("t_f", "t_b", "t_w", "activation_bytes"))
    return replace(grown, t_comm=None)


def laden(profile: Profile, load: float) -> Profile:
    """Messages ``load`` times as large, activations, weights and gradients; ops take as long."""
    return _scaled(profile, load, ("activation_bytes", "weight_bytes", "grad_bytes"))


def _scaled(profile: Profile, by: float, keys: Sequence[str]) -> Profile:
    def scaled(stage: StageProfile) -> StageProfile:
        known = {key: getattr(stage, key) for key in keys}
        return replace(stage, **{k: v * by for k, v in known.items() if v is not None})

    return replace(profile, stages=tuple(stage.changed(scaled) for stage in profile.stages))
