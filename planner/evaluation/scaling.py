"""Profiles in which one thing is scaled: the microbatch's size, the messages, unequal stages."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir.model.profile import Profile


def enlarged(profile: Profile, size: float) -> Profile:
    """Microbatches ``size`` times as large: times and activations grow with them, weights do not.

    Delays follow from the links alone.
    """
    stages = tuple(
        replace(
            s,
            t_f=s.t_f * size,
            t_b=s.t_b * size,
            t_w=s.t_w * size,
            activation_bytes=(s.activation_bytes or 0.0) * size,
        )
        for s in profile.stages
    )
    return replace(profile, stages=stages, t_comm=None)


def laden(profile: Profile, load: float) -> Profile:
    """Messages ``load`` times as large, activations, weights and gradients; ops take as long."""

    def grown(size: float | None) -> float | None:
        return None if size is None else size * load

    stages = tuple(
        replace(
            s,
            activation_bytes=grown(s.activation_bytes),
            weight_bytes=grown(s.weight_bytes),
            grad_bytes=grown(s.grad_bytes),
        )
        for s in profile.stages
    )
    return replace(profile, stages=stages)


def equalized(profile: Profile) -> Profile:
    """Every stage with the mean T_F, T_B and T_W."""
    count = profile.num_stages
    t_f, t_b, t_w = (
        sum(getattr(s, key) for s in profile.stages) / count for key in ("t_f", "t_b", "t_w")
    )
    stages = tuple(replace(s, t_f=t_f, t_b=t_b, t_w=t_w) for s in profile.stages)
    return replace(profile, stages=stages)
