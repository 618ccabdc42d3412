from __future__ import annotations

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.memory_footprint import footprint
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import TensorKind
from pipeloom.solver.families import build_family
from pipeloom.solver.weight_passing.round_orders import rows
from pipeloom.solver.weight_passing.streaming import Streaming, streamed

STAGE = StageProfile(1.0, 1.0, 1.0, 8.0, 2.0, 1.0, weight_bytes=100.0, optimizer_bytes=600.0)


def test_stages_that_stay() -> None:
    profile = Profile((STAGE,) * 3, 3)
    found = footprint(build_family("1f1b", profile, 6))
    assert found.activations == (24.0, 16.0, 8.0)
    assert found.weights == found.gradients == (100.0,) * 3
    assert found.optimizer == (600.0,) * 3
    assert found.passing == (0.0,) * 3
    assert found.total == (824.0, 816.0, 808.0)


def test_several_stages_a_rank() -> None:
    found = footprint(build_family("interleaved-1f1b", Profile((STAGE,) * 4, 2), 2))
    assert found.weights == (200.0, 200.0)


def test_travelling_weights_need_buffers_and_a_stage_at_work() -> None:
    large = StageProfile(1.0, 1.0, 1.0, 8.0, weight_bytes=100.0, grad_bytes=30.0)
    small = StageProfile(1.0, 1.0, 1.0, 8.0, weight_bytes=10.0, grad_bytes=20.0)
    schedule = build_family("fsdp:0", Profile((large, small), 2), 2)
    buffers = compile_schedule(schedule).buffers
    assert [list(map(str, row)) for row in buffers] == [["w1", "dw0"], ["w0", "dw1"]]
    found = footprint(schedule)
    assert found.weights == (100.0, 10.0)
    assert found.gradients == (30.0, 20.0)
    # a buffer for the other's weights, one for its own gradient, and the other's stage at work
    assert found.passing == (10.0 + 30.0 + (10.0 + 20.0), 100.0 + 20.0 + (100.0 + 30.0))
    assert found.activations == (16.0, 16.0)


def test_sums_are_kept_until_they_leave() -> None:
    """Of the two stages that a rank does not own, until the end, or from round to round."""
    stage = StageProfile(1.0, 1.0, 1.0, weight_bytes=10.0, grad_bytes=1000.0)
    profile = Profile((stage,) * 4, 2)
    problem = Problem(profile, 4, Placement.round_robin(2), (8.0, 8.0))
    order = rows(problem, rounds=2, deep=1)
    passing = {}
    for collections in (1, 2):
        plan = Streaming(buffers=1, collections=collections)
        schedule = streamed(problem, order, plan)
        buffers = compile_schedule(schedule).buffers
        received = [sum(b.kind is TensorKind.GRADIENT for b in row) for row in buffers]
        found = footprint(schedule).passing
        # a buffer and a stage at work of weights
        passing[collections] = [p - 20.0 - 1000.0 * n for p, n in zip(found, received, strict=True)]
    assert passing == {1: [2000.0, 2000.0], 2: [1000.0, 1000.0]}


def test_unknown_sizes_count_as_nothing() -> None:
    stage = StageProfile(1.0, 1.0, 1.0)
    found = footprint(build_family("wzb2", Profile((stage,) * 2, 2), 4))
    assert found.total == found.activations == (2.0, 2.0)
