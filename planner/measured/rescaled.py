"""Times that were not measured, scaled in proportion to measured ones."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir.model.profile import StageProfile


def with_times(old: StageProfile, t_f: float, t_b: float, t_w: float) -> StageProfile:
    """The stage with these times; T_R, T_FB and T_BW are scaled in proportion."""
    return replace(
        old,
        t_f=t_f,
        t_b=t_b,
        t_w=t_w,
        t_r=_scaled(old.t_r, old.t_f, t_f),
        t_fb=_scaled(old.t_fb, old.t_f + old.t_b + old.t_w, t_f + t_b + t_w),
        t_bw=_scaled(old.t_bw, old.t_b + old.t_w, t_b + t_w),
    )


def _scaled(time: float | None, old: float, new: float) -> float | None:
    """``time * new / old``, or ``new`` if ``old`` is 0."""
    if time is None:
        return None
    return time * new / old if old > 0 else new
