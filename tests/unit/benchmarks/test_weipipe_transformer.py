from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.weipipe.transformer import TOUCHED, Transformer
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.profile import Link, Links, Profile, StageProfile

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


def test_recomputing_keeps_inputs_alone_and_runs_f_again() -> None:
    model = Transformer(layers=3, hidden=64, sequence=32, microbatch=2, teraflops=2.0)
    kept, again = model.on(CLUSTER).stages[0], replace(model, recompute=True).on(CLUSTER).stages[0]
    assert (again.t_f, again.t_w) == (kept.t_f, kept.t_w)
    assert again.t_b == pytest.approx(kept.t_b + kept.t_f)
    assert again.m_b == again.m_w == pytest.approx(kept.m_b * 2 / 34)
    assert replace(model, recompute=True).recomputed_bytes == pytest.approx(kept.m_b * 32 / 34)
    assert model.recomputed_bytes == 0


def test_attention_and_what_waits_for_memory_have_their_own_rates() -> None:
    model = Transformer(layers=3, hidden=64, sequence=32, microbatch=2, teraflops=2.0)
    slower = replace(model, attention_teraflops=1.0, memory_gigabytes_per_second=100.0)
    fast, slow = model.on(CLUSTER).stages[0], slower.on(CLUSTER).stages[0]
    more = 2 * 64 * 32 * 64 / 2e9 + TOUCHED * 64 * 64 / 100e6
    assert slow.t_f == pytest.approx(fast.t_f + more)
    assert slow.t_b == pytest.approx(fast.t_b + 2 * more)
    assert slow.t_w == fast.t_w


def test_held_bytes_are_those_of_a_layer() -> None:
    model = Transformer(3, 64, 32, 2, 1.0, held_bytes=41.0)
    stage = model.on(CLUSTER).stages[0]
    assert (stage.m_b, stage.m_w) == (41.0 * 64 * 64, 39.0 * 64 * 64)
