"""Random small problems whose stages are on any ranks, with zeros and equal amounts among them."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from pipeloom import Objective, Placement, Problem, Profile, StageProfile

AMOUNT = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.0])
TIME = st.one_of(st.sampled_from([0.0, 1.0, 3.0]), st.floats(0.1, 3.0))


@st.composite
def stage_profiles(draw: st.DrawFn) -> StageProfile:
    m_b = draw(st.sampled_from([0.0, 1.0, 1.0, 1.3]))
    m_w = m_b * draw(st.sampled_from([0.0, 0.5, 0.94, 1.0]))
    return StageProfile(draw(TIME), draw(TIME), draw(TIME), m_b, m_w)


@st.composite
def problems(draw: st.DrawFn, owners: tuple[int, ...], microbatches: int) -> Problem:
    """Stage s on rank ``owners[s]``; one microbatch at a time fits on every rank."""
    stages = []
    for _ in owners:
        m_b = draw(AMOUNT)
        m_w = m_b * draw(st.sampled_from([0.0, 0.4, 1.0]))
        stages.append(StageProfile(draw(AMOUNT), draw(AMOUNT), draw(AMOUNT), m_b, m_w))
    if draw(st.booleans()):
        stages = [stages[0]] * len(owners)
    ranks = max(owners) + 1
    delay = st.sampled_from([0.0, 0.0, 0.3, 1.0, 40.0])
    t_comm = tuple(tuple(draw(delay) for _ in range(ranks)) for _ in range(ranks))
    slack = st.sampled_from([1.0, 1.4, 2.0, 2.5, 3.0, math.inf])
    held = [sum(s.m_b for s, o in zip(stages, owners, strict=True) if o == r) for r in range(ranks)]
    limit = tuple(one * draw(slack) if one else 0.0 for one in held)
    profile = Profile(tuple(stages), ranks, t_comm)
    placement = Placement.of_stages(owners)
    return Problem(profile, microbatches, placement, limit, draw(st.sampled_from(Objective)))


def linear_problems(ranks: int, microbatches: int) -> st.SearchStrategy[Problem]:
    return problems(tuple(range(ranks)), microbatches)
