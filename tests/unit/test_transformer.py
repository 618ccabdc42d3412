from __future__ import annotations

import pytest

from pipeloom.ir.errors import InputError
from pipeloom.ir.profile import Link, Links, Profile, StageProfile
from pipeloom.solver.transformer import Transformer

CLUSTER = Profile(
    (StageProfile(1.0, 1.0, 1.0),), 3, t_comm=1.0, links=Links(Link(0.1, 10.0)), name="three"
)


def test_layers_are_dealt_out_and_the_cluster_is_kept() -> None:
    model = Transformer(layers=7, hidden=64, sequence=32, microbatch=2, teraflops=1.0)
    profile = model.on(CLUSTER)
    assert (profile.ranks, profile.num_stages, profile.name) == (3, 3, "three")
    assert profile.links == CLUSTER.links
    assert profile.t_comm is None  # what links and sizes say counts
    assert [stage.weight_bytes for stage in profile.stages] == [
        2.0 * 12 * 64**2 * layers for layers in (3, 2, 2)
    ]
    assert {stage.activation_bytes for stage in profile.stages} == {2.0 * 64 * 64}


def test_times_of_one_layer() -> None:
    """A training step is 6 operations a token and parameter, and attention's on top."""
    model = Transformer(layers=3, hidden=64, sequence=32, microbatch=2, teraflops=2.0)
    stage = model.on(CLUSTER).stages[0]
    tokens, parameters = 64, 12 * 64**2
    attention = 2 * tokens * 32 * 64
    assert stage.t_f == pytest.approx((2 * tokens * parameters + attention) / 2e9)
    assert stage.t_b == pytest.approx((2 * tokens * parameters + 2 * attention) / 2e9)
    assert stage.t_w == pytest.approx(2 * tokens * parameters / 2e9)
    assert stage.m_w == pytest.approx(stage.m_b * 32 / 34)


def test_each_rank_needs_a_layer() -> None:
    with pytest.raises(InputError, match="layers: expected at least 3, one a rank, got 2"):
        Transformer(layers=2, hidden=8, sequence=8, microbatch=1, teraflops=1.0).on(CLUSTER)
