"""Profiles of stages that are sharded over a mesh, measured by all of its processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, Measurement, OpKind, StageProfile, dump_profile, parse_profile
from pipeloom.planner.build import build
from pipeloom.runtime import Pipeline, launch_ranks, measure_profile
from pipeloom.runtime.probes.held_bytes import local_bytes
from tests.support.schedules import schedule

RANKS, SHARDS, MICROBATCHES, REPEATS = 2, 2, 2, 1
WIDTH, HIDDEN, ROWS = 8, 12, 6
KINDS = {OpKind.F, OpKind.B, OpKind.W, OpKind.BW}
Group = dist.ProcessGroup


@dataclass(frozen=True)
class Model:
    """Stages with random numbers and buffers of their own, and two products; hidden units are cut
    over ``tensor``, or parameters over ``shards``."""

    tensor: DeviceMesh | None = None
    shards: DeviceMesh | None = None

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        return [partial(self._stage, s) for s in range(count)]

    def _stage(self, stage: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(stage)
            norm, drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)
            module = nn.Sequential(self._products(), norm.double(), drop)
        if self.shards is not None:
            fully_shard(module, mesh=self.shards)
        return module

    def _products(self) -> nn.Module:
        module = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, WIDTH))
        module.double()
        if self.tensor is not None:
            columns, rows = ColwiseParallel(), RowwiseParallel()
            parallelize_module(module, self.tensor, {"0": columns, "2": rows})
        return module

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return []

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(output, target)

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        drawn = torch.randn(2, microbatches, ROWS, WIDTH, dtype=torch.float64)
        return list(drawn[0]), list(drawn[1])

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters)


@dataclass(frozen=True)
class Seen:
    """Of one process: its pipeline's profile by each view, that of ``measure_profile`` in the same
    place, and one of whole stages by one rank alone; its own stage's bytes of parameters; whether
    steps after profiling were as without; bytes of whole parameters that profiling left."""

    rank: int
    views: dict[str, Measurement]
    measured: Measurement
    whole: Measurement
    local: int
    same: bool
    left: int


@dataclass(frozen=True)
class Found:
    tensor: Seen
    sharded: Seen
    refused: list[str]


@pytest.fixture(scope="module")
def found() -> dict[int, Found]:
    return launch_ranks(run, RANKS * SHARDS, timeout=240, message_timeout=60)


def run() -> Found:
    del os.environ["OMP_NUM_THREADS"]  # the job itself says how many
    mesh = init_device_mesh("cpu", (SHARDS, RANKS, 1), mesh_dim_names=("shards", "pp", "one"))
    shards = mesh["shards"]
    tensor = _seen(mesh, Model(tensor=shards), None)
    sharded = _seen(mesh, Model(shards=shards), shards.get_group())
    found = Found(tensor, sharded, _refused(mesh))
    assert torch.get_num_threads() == 1  # as the job had it
    return found


def _seen(mesh: DeviceMesh, source: Model, data_group: Group | None) -> Seen:
    group = mesh["pp"].get_group()
    first, profiled = (_pipeline(source, group, data_group) for _ in range(2))
    steps = [_trained(first, 2), _trained(profiled, 1)]
    x, y = _batch(0)
    views = {
        view: profiled.profile(
            x, target=y, repeats=REPEATS, warmup=0, recompute=view == "all", view=view
        )
        for view in ("all", "pipeline", "rank")
    }
    stores = [p for s in profiled.modules for p in profiled.store.parameters(s)]
    left = sum(p.untyped_storage().size() for p in stores) if data_group else 0
    steps[1] += _trained(profiled, 1, start=1)
    parameters = [[p for m in pipeline.modules.values() for p in m.parameters()]
                  for pipeline in (first, profiled)]  # fmt: skip
    same = steps[0] == steps[1] and all(
        torch.equal(_local(a), _local(b)) for a, b in zip(*parameters, strict=True)
    )
    local = sum(map(local_bytes, parameters[0]))
    for pipeline in (first, profiled):
        pipeline.close()
    measure = partial(measure_profile, stages=RANKS, repeats=1, warmup=0, in_flight=RANKS)
    measured = measure(source, ranks=RANKS, group=group, data_group=data_group)
    whole = measure(Model(), ranks=1, group=mesh["one"].get_group(), view="pipeline")
    rank = mesh.get_local_rank("pp")
    return Seen(rank, views, measured, whole, local, same, left)


def _local(parameter: Any) -> Tensor:
    value: Tensor = getattr(parameter, "to_local", lambda: parameter)()
    return value


def _pipeline(source: Model, group: Group, data_group: Group | None) -> Pipeline:
    plan = schedule("zb-h1", RANKS, MICROBATCHES)
    program = compile_schedule(plan, data_parallel=data_group is not None)
    return Pipeline.from_source(program, source, group=group, data_group=data_group)


def _batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    shape = (MICROBATCHES * ROWS, WIDTH)
    x, y = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return x, y


def _trained(pipeline: Pipeline, steps: int, start: int = 0) -> list[float]:
    """Losses; each step draws random numbers from where the one before it left them."""
    if start == 0:
        torch.manual_seed(7)
    losses: list[Tensor] = []
    found = []
    for step in range(start, start + steps):
        x, y = _batch(step)
        pipeline.step(x, target=y, losses=losses)
        found += [loss.item() for loss in losses]
    return found


def _refused(mesh: DeviceMesh) -> list[str]:
    """What is said of a program that sends weights, a view that there is not, and wrong places."""
    group, said = mesh["pp"].get_group(), []
    x, y = _batch(0)
    program = compile_schedule(schedule("weipipe-interleave", RANKS, MICROBATCHES))
    sends = Pipeline.from_source(program, Model(), group=group)
    keeps = _pipeline(Model(), group, None)
    measure = partial(measure_profile, Model(), stages=RANKS, group=group)
    sharded = Model(shards=mesh["shards"])
    for call in (
        lambda: sends.profile(x, target=y),
        lambda: keeps.profile(x, target=y, view="mine"),
        lambda: keeps.profile(x, target=y, repeats=0),
        lambda: measure(ranks=3),
        lambda: measure(ranks=RANKS, together=False),
        lambda: measure_profile(sharded, stages=RANKS, ranks=RANKS, group=group),
        lambda: measure_profile(
            sharded, stages=RANKS, ranks=RANKS, group=group, dtype=torch.float32
        ),
    ):
        with pytest.raises(InputError) as error:
            call()
        said += error.value.errors
    sends.close()
    keeps.close()
    return said


@pytest.fixture(params=["tensor", "sharded"])
def seen(request: pytest.FixtureRequest, found: dict[int, Found]) -> list[Seen]:
    """Of each process, what it saw of one kind of shards."""
    return [getattr(one, request.param) for one in found.values()]


def test_all_processes_have_one_profile_that_families_take(seen: list[Seen]) -> None:
    first = seen[0].views["all"]
    assert all(one.views["all"] == first for one in seen)
    assert (first.profile.num_stages, first.profile.ranks) == (RANKS, RANKS)
    assert first.profile.max_stages == RANKS
    assert (first.profile.links is not None, first.profile.micro_batch) == (True, ROWS)
    assert parse_profile(dump_profile(first.profile), "profile.json") == first.profile
    assert build("zb-h1", first.profile, MICROBATCHES).problem.stages == RANKS
    for stage, times in zip(first.profile.stages, first.times, strict=True):
        assert set(times) == KINDS | {OpKind.R}
        assert {figure.samples for figure in times.values()} == {SHARDS * REPEATS * RANKS}
        assert min(stage.t_f, stage.t_b, stage.t_w, stage.t_r or 0) > 0
        assert 0 < stage.m_w <= stage.m_b
        assert stage.activation_bytes == ROWS * WIDTH * 8


def test_a_pipelines_view_is_of_its_ranks_and_a_ranks_of_its_stages(seen: list[Seen]) -> None:
    for one in seen:
        pipeline, rank = one.views["pipeline"], one.views["rank"]
        assert {f.samples for f in pipeline.times[0].values()} == {REPEATS * RANKS}
        assert (rank.profile.num_stages, rank.profile.ranks, rank.profile.links) == (1, 1, None)
        mine = sizes(pipeline.profile.stages[one.rank])
        assert sizes(rank.profile.stages[0]) == mine


def sizes(stage: StageProfile) -> StageProfile:
    return replace(stage, t_f=0.0, t_b=0.0, t_w=0.0, t_bw=None, t_r=None, m_r=None, spread=None)


def test_training_goes_on_to_the_last_bit_and_nothing_stays(seen: list[Seen]) -> None:
    assert all(one.same and one.left == 0 for one in seen)


@pytest.mark.parametrize("seen", ["tensor"], indirect=True)
def test_of_parameters_that_are_cut_each_device_counts_its_own(seen: list[Seen]) -> None:
    """By all: the device that has the most."""
    for one in seen:
        own = one.views["rank"].profile.stages[0]
        assert own.weight_bytes == own.grad_bytes == one.local
        assert 2 * one.local <= (own.optimizer_bytes or 0) < 3 * one.local  # Adam's
        most = max(other.local for other in seen)
        for stage, whole in zip(
            one.views["all"].profile.stages, one.whole.profile.stages, strict=True
        ):
            assert stage.weight_bytes == most < (whole.weight_bytes or 0)
            assert stage.m_b < whole.m_b
            assert stage.activation_bytes == whole.activation_bytes


def test_stages_in_fully_shard_hold_shards_and_in_a_step_whole_parameters(
    found: dict[int, Found],
) -> None:
    for one in found.values():
        seen = one.sharded
        own = seen.views["rank"].profile.stages[0]
        whole = seen.whole.profile.stages[seen.rank]
        assert (own.m_b, own.m_w) == (whole.m_b, whole.m_w)
        assert whole.weight_bytes is not None
        assert own.weight_bytes == own.grad_bytes == whole.weight_bytes + seen.local
        assert 2 * seen.local < (own.optimizer_bytes or 0) < 2 * whole.weight_bytes


def test_a_source_is_measured_in_the_same_place(seen: list[Seen]) -> None:
    for one in seen:
        assert one.measured == seen[0].measured
        pairs = zip(one.measured.profile.stages, one.views["all"].profile.stages, strict=True)
        for mine, other in pairs:
            # a step has told the pipeline which parameters have no state
            assert (mine.optimizer_bytes or 0) >= (other.optimizer_bytes or 0)
            alike = replace(sizes(other), optimizer_bytes=mine.optimizer_bytes)
            assert sizes(mine) == alike


def test_what_cannot_be_measured_is_said(found: dict[int, Found]) -> None:
    for one in found.values():
        assert one.refused == [
            "profile: expected a program that sends activations, not weights",
            "view: expected all, pipeline, rank, got 'mine'",
            "repeats: expected a whole number >= 1, got 0",
            "ranks: expected 2, as in group, got 3",
            "group: expected none beside alone",
            "data_group: expected the processes that have shards of stage "
            f"{one.sharded.rank}, got None",
            f"dtype: expected none, as stage {one.sharded.rank} has shards in their own, "
            "got torch.float32",
        ]
