"""Bounds for microbatches that are unlike."""

from __future__ import annotations

import pytest

from pipeloom.ir.formats import parse_profile
from pipeloom.ir.model.problem import Problem
from pipeloom.solver.bounds import lower_bound


def test_two_long_microbatches_pass_the_last_stage_one_after_the_other() -> None:
    """::

    rank 0  F F             B W B W    10 to stage 1, 10 to stage 2, there 2 x (10 + 10) of both,
    rank 1    F F         B   B        10 on stage 1, 10 on stage 0 and the last W, 1;
    rank 2      F B   F B              and the short one's F, 1, before them
    """
    times = [10.0, 10.0, 1.0]
    stage = {"t_f": times, "t_b": times, "t_w": 1.0, "m_b": 1.0, "m_w": 1.0}
    document = {"format": "pipeloom.profile", "version": 1, "ranks": 3, "stages": [stage] * 3}
    profile = parse_profile(document | {"t_comm": 0.0}, "profile")
    bound = lower_bound(Problem.linear(profile, 3))
    assert (bound.name, bound.value) == ("through", pytest.approx(82.0))
    assert "the 2 longest of 3 microbatches" in bound.explained()[0]
