"""Profiles of stages that are sharded over a mesh, measured by all of its processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pipeloom import build_family, compile_schedule
from pipeloom.ir import InputError, Measurement, OpKind, StageProfile, dump_profile, parse_profile
from pipeloom.runtime import Pipeline, launch_ranks, measure_profile
from tests.support.models import Squares, stepped
from tests.support.schedules import schedule

RANKS, SHARDS, MICROBATCHES, REPEATS = 2, 2, 2, 1
WIDTH, HIDDEN, ROWS = 8, 12, 6
KINDS = {OpKind.F, OpKind.B, OpKind.W, OpKind.BW}
Group = dist.ProcessGroup


@dataclass(frozen=True)
class Model(Squares):
    """Stages with random numbers and buffers of their own, and two products; hidden units are cut
    over ``tensor``, or parameters over ``shards``."""

    dtype: torch.dtype = torch.float64
    tensor: DeviceMesh | None = None
    shards: DeviceMesh | None = None
    shape: ClassVar[tuple[int, ...]] = (ROWS, WIDTH)

    def stage(self, number: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(number)
            products = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, WIDTH))
            module = nn.Sequential(products, nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)).double()
        if self.tensor is not None:
            cut = {"0.0": ColwiseParallel(), "0.2": RowwiseParallel()}
            parallelize_module(module, self.tensor, cut)
        if self.shards is not None:
            fully_shard(module, mesh=self.shards)
        return module

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters)


@dataclass(frozen=True)
class Seen:
    """Of one process: its pipeline's profile, its own stage's bytes of parameters, whether steps
    after profiling were as without, and bytes of whole parameters that profiling left."""

    rank: int
    profiled: Measurement
    local: int
    same: bool
    left: int


@cache
def found() -> dict[str, list[Seen]]:
    """By kind of shards what each process saw, and what is refused there."""
    rows = launch_ranks(run, RANKS * SHARDS, timeout=240, message_timeout=60)
    return {kind: [row[kind] for row in rows.values()] for kind in rows[0]}


def run() -> dict[str, Any]:
    del os.environ["OMP_NUM_THREADS"]  # the job itself says how many
    mesh = init_device_mesh("cpu", (SHARDS, RANKS), mesh_dim_names=("shards", "pp"))
    shards = mesh["shards"]
    tensor = _seen(mesh, Model(tensor=shards), None)
    sharded = _seen(mesh, Model(shards=shards), shards.get_group())
    refused = _refused(mesh)
    assert torch.get_num_threads() == 1  # as the job had it
    return {"tensor": tensor, "sharded": sharded, "refused": refused}


def _seen(mesh: DeviceMesh, source: Model, data_group: Group | None) -> Seen:
    group = mesh["pp"].get_group()
    first, profiled = (_pipeline(source, group, data_group) for _ in range(2))
    steps = [_trained(first, 2), _trained(profiled, 1)]
    x, y = map(torch.cat, source.batch(0, MICROBATCHES))
    found = profiled.profile(x, target=y, repeats=REPEATS, warmup=0, recompute=True)
    stores = [p for s in profiled.modules for p in profiled.store.parameters(s)]
    left = sum(p.untyped_storage().size() for p in stores) if data_group else 0
    steps[1] += _trained(profiled, 1, start=1)
    pairs = zip(_local(first), _local(profiled), strict=True)
    same = steps[0] == steps[1] and all(torch.equal(a, b) for a, b in pairs)
    local = sum(p.nbytes for p in _local(first))
    for pipeline in (first, profiled):
        pipeline.close()
    return Seen(mesh.get_local_rank("pp"), found, local, same, left)


def _local(pipeline: Pipeline) -> list[Tensor]:
    """This process's parts of its parameters."""
    parameters = [p for module in pipeline.modules.values() for p in module.parameters()]
    return [getattr(p, "to_local", lambda p=p: p)() for p in parameters]


def _pipeline(source: Model, group: Group, data_group: Group | None) -> Pipeline:
    plan = schedule("zb-h1", RANKS, MICROBATCHES)
    program = compile_schedule(plan, data_parallel=data_group is not None)
    return Pipeline.from_source(program, source, group=group, data_group=data_group)


def _trained(pipeline: Pipeline, steps: int, start: int = 0) -> list[float]:
    """Losses; each step draws random numbers from where the one before it left them."""
    if start == 0:
        torch.manual_seed(7)
    rows = [stepped(pipeline, Model(), step) for step in range(start, start + steps)]
    return [loss for row in rows for loss in row]


def _refused(mesh: DeviceMesh) -> str:
    """What is said of a program that sends weights."""
    x, y = map(torch.cat, Model().batch(0, MICROBATCHES))
    program = compile_schedule(schedule("weipipe-interleave", RANKS, MICROBATCHES))
    sends = Pipeline.from_source(program, Model(), group=mesh["pp"].get_group())
    with pytest.raises(InputError) as error:
        sends.profile(x, target=y)
    sends.close()
    return str(error.value)


@pytest.fixture(params=["tensor", "sharded"])
def seen(request: pytest.FixtureRequest) -> list[Seen]:
    """Of each process, what it saw of one kind of shards."""
    return found()[request.param]


def test_all_processes_have_one_profile_that_families_take(seen: list[Seen]) -> None:
    first = seen[0].profiled
    assert all(one.profiled == first for one in seen)
    assert (first.profile.num_stages, first.profile.ranks) == (RANKS, RANKS)
    assert first.profile.max_stages == RANKS
    assert first.profile.micro_batch == ROWS
    assert first.profile.links is not None
    assert first.profile.links.default.delay(2**24) > first.profile.links.default.latency > 0
    assert first.delay is not None
    assert first.profile.t_comm == first.delay.median
    assert parse_profile(dump_profile(first.profile), "profile.json") == first.profile
    assert build_family("zb-h1", first.profile, MICROBATCHES).problem.stages == RANKS
    for stage, times in zip(first.profile.stages, first.times, strict=True):
        assert set(times) == KINDS | {OpKind.R}
        assert {figure.samples for figure in times.values()} == {SHARDS * REPEATS * RANKS}
        assert min(stage.t_f, stage.t_b, stage.t_w, stage.t_r or 0) > 0
        assert 0 < stage.m_w <= stage.m_b
        assert stage.activation_bytes == ROWS * WIDTH * 8


def test_training_goes_on(seen: list[Seen]) -> None:
    """Steps are as without to the last bit, and no whole parameters stay."""
    assert [(one.same, one.left) for one in seen] == [(True, 0)] * RANKS * SHARDS


@cache
def whole() -> tuple[StageProfile, ...]:
    """Stages that are not sharded."""
    once: dict[str, Any] = {"repeats": 1, "warmup": 0, "together": False}
    given = measure_profile(Model(), stages=RANKS, ranks=RANKS, **once)
    return given.profile.stages


def test_of_parameters_that_are_cut_each_device_counts_its_own() -> None:
    """The profile has those of the device that has the most."""
    for one in found()["tensor"]:
        own = one.profiled.profile.stages[one.rank]
        assert own.weight_bytes == own.grad_bytes == one.local
        assert 2 * one.local <= (own.optimizer_bytes or 0) < 3 * one.local  # Adam's
        for stage, uncut in zip(one.profiled.profile.stages, whole(), strict=True):
            assert stage.weight_bytes == one.local < (uncut.weight_bytes or 0)
            assert stage.m_b < uncut.m_b
            assert stage.activation_bytes == uncut.activation_bytes


def test_stages_in_fully_shard_hold_shards_and_in_a_step_whole_parameters() -> None:
    for one in found()["sharded"]:
        own, uncut = one.profiled.profile.stages[one.rank], whole()[one.rank]
        assert (own.m_b, own.m_w) == (uncut.m_b, uncut.m_w)
        weights = uncut.weight_bytes or 0.0
        assert own.weight_bytes == own.grad_bytes == weights + one.local
        assert 2 * one.local < (own.optimizer_bytes or 0) < 2 * weights


def test_what_cannot_be_measured_is_said() -> None:
    line = "profile: expected a program that sends activations, not weights"
    assert found()["refused"] == [line] * SHARDS * RANKS
