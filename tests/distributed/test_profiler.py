"""Profiles measured by processes that run together, and by one alone."""

from __future__ import annotations

import pytest

from examples.gpt import small
from pipeloom.ir import OpKind, dump_profile, parse_profile
from pipeloom.runtime import measure_profile
from pipeloom.runtime.probes.link_probe import LARGE


@pytest.mark.parametrize("stages", [2, 4])
def test_ranks_measured_together(stages: int) -> None:
    found = measure_profile(small(), stages=stages, ranks=2, repeats=2, warmup=1, in_flight=3)
    profile = found.profile
    assert (profile.ranks, profile.num_stages, profile.micro_batch) == (2, stages, 2)
    assert profile.max_stages == 4
    assert all(min(s.t_f, s.t_b, s.t_w) > 0 for s in profile.stages)
    assert all(0 < s.m_w <= s.m_b for s in profile.stages)
    # what a stage sends: (2, 16, 32) float32
    assert {s.activation_bytes for s in profile.stages} == {2 * 16 * 32 * 4}
    assert all(
        s.optimizer_bytes > 2 * s.weight_bytes for s in profile.stages
    )  # Adam, and its steps
    assert {figure.samples for stage in found.times for figure in stage.values()} == {2 * 3}
    for stage, figures in zip(profile.stages, found.times, strict=True):
        assert figures[OpKind.BW].median > 0
        assert stage.t_bw in (None, figures[OpKind.BW].median)
    assert found.delay is not None
    assert profile.t_comm is not None
    assert profile.links is not None
    assert profile.t_comm == found.delay.median
    # of messages that are large enough to show it
    assert profile.links.default.delay(LARGE) > profile.links.default.latency > 0
    assert parse_profile(dump_profile(profile), "profile.json") == profile
