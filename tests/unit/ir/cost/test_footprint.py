"""Memory of each rank, bytes over each wire."""

from __future__ import annotations

import pytest

from pipeloom.compiler import compile_schedule, footprint
from pipeloom.ir import (
    Profile,
    StageProfile,
    traffic,
)
from pipeloom.solver import build_family, replicate

# memory_footprint ---------------------------------------------------------------------------------


STAGE = StageProfile(1.0, 1.0, 1.0, 8.0, 2.0, 1.0, weight_bytes=100.0, optimizer_bytes=600.0)


def test_stages_that_stay() -> None:
    profile = Profile((STAGE,) * 3, 3)
    found = footprint(build_family("1f1b", profile, 6))
    assert found.activations == (24.0, 16.0, 8.0)
    assert found.weights == found.gradients == (100.0,) * 3
    assert found.optimizer == (600.0,) * 3
    assert found.passing == (0.0,) * 3
    assert found.total == (824.0, 816.0, 808.0)


def test_travelling_weights_need_buffers_and_a_stage_at_work() -> None:
    large = StageProfile(1.0, 1.0, 1.0, 8.0, weight_bytes=100.0, grad_bytes=30.0)
    small = StageProfile(1.0, 1.0, 1.0, 8.0, weight_bytes=10.0, grad_bytes=20.0)
    schedule = build_family("fsdp:0", Profile((large, small), 2), 2)
    buffers = compile_schedule(schedule).buffers
    assert [list(map(str, row)) for row in buffers] == [["w1", "dw0"], ["w0", "dw1"]]
    found = footprint(schedule)
    assert found.weights == (100.0, 10.0)
    assert found.gradients == (30.0, 20.0)
    # the buffer for the other's weights, its own gradient's buffer, the other's running stage
    assert found.passing == (10.0 + 30.0 + (10.0 + 20.0), 100.0 + 20.0 + (100.0 + 30.0))
    assert found.activations == (16.0, 16.0)


# traffic ------------------------------------------------------------------------------------------


SENT = StageProfile(1.0, 1.0, 1.0, activation_bytes=3.0, weight_bytes=5.0, grad_bytes=7.0)


def test_weights_and_gradients_by_their_own_sizes() -> None:
    schedule = build_family("weipipe-interleave", Profile((SENT,) * 2, 2), 1)
    # one microbatch, on rank 0: it receives stage 1's weights twice and sends its gradient
    assert traffic(schedule).tolist() == [[0, 7], [10, 0]]


def test_gradients_of_replicas_are_summed_round_a_ring() -> None:
    schedule = build_family("weipipe-interleave", Profile((SENT,) * 3, 3), 3)
    inner = traffic(schedule) - traffic(replicate(schedule, [0]))
    assert inner[0, 2] == sum(
        {"weight": 5, "gradient": 7}[t.kind.value]
        for t in schedule.transfers
        if (t.stage, t.source, t.target) == (0, 0, 2)
    )
    all_replicated = traffic(replicate(schedule, range(3)))
    share = 3 * 2 * 2 / 3 * 7
    ring = [[0, share, 0], [0, 0, share], [share, 0, 0]]
    assert all_replicated.tolist() == [pytest.approx(row) for row in ring]
