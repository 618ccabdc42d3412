"""For all profiles, no schedule that is planned for Megatron costs less than the reported bound."""

from __future__ import annotations

import math
from operator import le

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import pipeloom
from pipeloom import InfeasibleError, InputError, Profile, StageProfile
from pipeloom.compiler import footprint
from pipeloom.ir import LayeredProfile
from tests.support.layered_profiles import equal_blocks, layered, with_ends

TIME = st.one_of(st.sampled_from([0.0, 1.0, 3.0]), st.floats(0.1, 3.0))


@st.composite
def stage_profiles(draw: st.DrawFn) -> StageProfile:
    m_b = draw(st.sampled_from([0.0, 1.0, 1.0, 1.3]))
    m_w = m_b * draw(st.sampled_from([0.0, 0.5, 0.94, 1.0]))
    return StageProfile(draw(TIME), draw(TIME), draw(TIME), m_b, m_w)


def assert_bounds_all(profile: Profile | LayeredProfile, microbatches: int, most: int) -> None:
    """The bound for Megatron's schedules is not above any of them that can be built."""
    try:
        answer = pipeloom.optimize(profile, microbatches, for_="megatron", work_limit=20.0)
    except InfeasibleError:
        assume(False)
    assert answer.lower_bound <= answer.cost * (1 + 1e-9)
    for chunks in range(1, most + 1):
        name = "1f1b" if chunks == 1 else f"interleaved-1f1b:{chunks}"
        if chunks > 1 and microbatches % profile.ranks:
            continue
        try:
            made = pipeloom.build(name, profile, microbatches)
        except (InfeasibleError, InputError):
            continue
        devices = made.problem.profile.device_memory or (math.inf,) * profile.ranks
        fits = all(map(le, footprint(made).total, devices))
        assert not fits or answer.lower_bound <= made.known_timing.period * (1 + 1e-9), name


@settings(max_examples=25)
@given(data=st.data())
def test_no_cut_of_layers_is_below_the_bound(data: st.DataObject) -> None:
    blocks = st.integers(2, 14).map(equal_blocks)
    profile = with_ends(data.draw(st.one_of(layered(2, 12), blocks)))
    rounds = data.draw(st.integers(1, 2))
    assert_bounds_all(profile, rounds * profile.ranks, len(profile.layers) // profile.ranks)


@settings(max_examples=25)
@given(
    stages=st.lists(stage_profiles(), min_size=1, max_size=3),
    rounds=st.integers(1, 2),
    t_comm=st.sampled_from([0.0, 0.3, 4.0]),
)
def test_no_even_cut_of_stages_is_below_the_bound(
    stages: list[StageProfile], rounds: int, t_comm: float
) -> None:
    profile = Profile(tuple(stages), len(stages), t_comm)
    assert_bounds_all(profile, rounds * len(stages), 4)
