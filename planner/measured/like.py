"""Times and links of a profile of the same stages, for what is not measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted

from ..inputs.documents import Planned, read_schedule
from ..inputs.problem_setup import ProfileLike, ProfileSource
from ..solving.progress import Listener

Like: TypeAlias = ProfileLike | Schedule | Planned


def profile_like(given: Like, progress: Listener | None = None) -> Profile:
    """The profile by stages, or that of a schedule or program. Raises InputError for layers."""
    if isinstance(given, Schedule | Planned):
        return read_schedule(given)[0].problem.profile
    source = ProfileSource(given, progress)
    if isinstance(given, Mapping):
        source.where = "like"
    if (planned := source.in_place) is not None:
        return planned.problem.profile
    if not source.has_stages:
        raise InputError(
            f"like: expected a profile by stages, got one by layers ({source.where}): a schedule "
            "that was made of it has its stages"
        )
    return source.stages


def with_times_of(found: Measurement, given: Like) -> Measurement:
    """A measurement with the times and links of a profile of the same stages, or of a schedule or
    program for one. Raises InputError where that has other stages."""
    like, profile = profile_like(given), found.profile
    if like.num_stages != profile.num_stages:
        raise InputError(
            f"like: expected a profile of {counted(profile.num_stages, 'stage')}, got "
            f"{like.num_stages}"
        )
    stages = tuple(map(_timed, profile.stages, like.stages))
    links = {key: getattr(like, key) for key in ("links", "t_comm", "host_link")}
    return replace(found, profile=replace(profile, stages=stages, **links))


def _timed(stage: StageProfile, like: StageProfile) -> StageProfile:
    again = None if stage.m_r is None else like.t_r
    return replace(
        stage,
        t_f=like.t_f,
        t_b=like.t_b,
        t_w=like.t_w,
        t_bw=like.t_bw,
        t_fb=like.t_fb,
        t_r=again,
        m_r=None if again is None else stage.m_r,
        spread=like.spread,
    )
