"""Memory of each rank, bytes over each wire, makespans with random op times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir import (
    ExpectedMakespan,
    Profile,
    Schedule,
    StageProfile,
    footprint,
    sampled_makespans,
    simulate,
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


# makespans with random op times: without spread as simulated, random draws, a measured one --------


STAGES = tuple(StageProfile(2.0 + s % 3, 3.0, 1.5 + s % 2, activation_bytes=1e6) for s in range(4))
PROFILE = Profile(STAGES, 4, t_comm=0.25)
INFINITE = float("inf")


def built(family: str, microbatches: int = 8) -> Schedule:
    return build_family(family, PROFILE, microbatches, memory_limit=INFINITE)


@pytest.mark.parametrize(
    "family", ["1f1b", "zb-h1", "interleaved-1f1b:2", "zb-v", "chimera", "weipipe-interleave"]
)
def test_without_spread_each_sample_takes_what_the_simulator_says(family: str) -> None:
    schedule = built(family)
    found = sampled_makespans(schedule, [0.0] * schedule.problem.stages, samples=3)
    assert found == pytest.approx([simulate(schedule).makespan] * 3)


def test_op_times_have_the_profile_s_as_mean_and_the_spread_and_follow_the_seed() -> None:
    """The makespan of one rank is the sum of its op times."""
    schedule = build_family("1f1b", replace(PROFILE, stages=STAGES[:1], ranks=1), 4, memory_limit=9)
    (times,) = simulate(schedule).took
    found = sampled_makespans(schedule, [0.2], samples=20_000)
    assert found.mean() == pytest.approx(times.sum(), rel=0.002)
    assert found.std() == pytest.approx(0.2 * np.sqrt(np.square(times).sum()), rel=0.02)
    first, again, other = (
        sampled_makespans(schedule, [0.2], samples=9, seed=seed) for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).all()


def test_a_measured_makespan_has_its_place_among_those_expected() -> None:
    schedule = built("1f1b")
    assert ExpectedMakespan.of(schedule, 1.0) is None
    stages = tuple(replace(stage, spread=0.1) for stage in STAGES)
    problem = replace(schedule.problem, profile=replace(PROFILE, stages=stages))
    spread = replace(schedule, problem=problem)
    found = ExpectedMakespan.of(spread, 0.0)
    assert found is not None
    assert simulate(schedule).makespan < found.mean < found.p95
    shares = [ExpectedMakespan.of(spread, by) for by in (found.p95, 2 * found.p95)]
    assert [one.share_below for one in shares if one] == pytest.approx([0.95, 1.0], abs=0.01)
    assert "measured above 0% of simulated steps" in str(found)
