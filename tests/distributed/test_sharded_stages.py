"""Stages wrapped in ``fully_shard``: replicas hold shards, and train as one process does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError
from pipeloom.runtime import Pipeline, launch_ranks
from pipeloom.runtime.stages.store import made
from tests.support.models import WIDTH, Untied, gradient, named, reference, worst
from tests.support.schedules import schedule

REPLICAS, RANKS, MICROBATCHES = 2, 2, 3


@dataclass(frozen=True)
class Odd(Untied):
    """Odd sizes, 17 rows of the head say, do not divide by two."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return super().loss(output.to(self.dtype), target)


@dataclass(frozen=True)
class Returned:
    """Of a stage after ``close``, trained by itself: whether its gradients are those of one that no
    pipeline had; bytes of whole parameters in all, after a forward, and after the backward.
    """

    same: bool
    whole: int
    forward: int
    backward: int


Found: TypeAlias = tuple[float, int, list[str], float, Returned]


@pytest.fixture(scope="module")
def outcomes() -> dict[int, Found]:
    return launch_ranks(trained, REPLICAS * RANKS, timeout=200, message_timeout=60)


def test_each_process_keeps_its_shard_alone_between_steps(outcomes: dict[int, Found]) -> None:
    for share, left, *_ in outcomes.values():
        assert left == 0
        assert 0.4 < share < 0.6


def test_what_cannot_be_sharded_is_said(outcomes: dict[int, Found]) -> None:
    for _, _, (part, bare, cast), *_ in outcomes.values():
        assert "expected fully_shard on the stage itself" in part
        assert "data_group: expected" in bare
        assert "expected its mp_policy to say in what it computes" in cast


def test_gradients_of_lower_precision_add_up_in_the_parameters_own(
    outcomes: dict[int, Found],
) -> None:
    for *_, difference, _ in outcomes.values():
        assert 0 < difference < 0.05


def test_after_close_fully_shard_reduces_and_releases_by_itself(outcomes: dict[int, Found]) -> None:
    for *_, returned in outcomes.values():
        assert returned.same
        assert 0 < returned.forward < returned.whole  # the root keeps its own until the backward
        assert returned.backward == 0


def trained() -> Found:
    mesh = _mesh()
    return *_trained(mesh), _refused(mesh), _mixed(mesh), _returned(mesh)


def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (REPLICAS, RANKS), mesh_dim_names=("dp", "pp"))


def _trained(mesh: DeviceMesh) -> tuple[float, int]:
    """After steps: bytes of parameters, gradients and optimizer state, over those of whole stages;
    bytes of whole parameters that are still there."""
    source = Odd()
    pipeline = _pipeline("zb-v", source, mesh, clip_grad_norm=1e9)
    for step in range(2):
        _step(pipeline, source, mesh, step)
    pipeline.finish()
    found = _share(pipeline), _left(pipeline)
    pipeline.close()
    return found


def _pipeline(
    family: str,
    source: Odd,
    mesh: DeviceMesh,
    policy: MixedPrecisionPolicy | None = None,
    **options: object,
) -> Pipeline:
    plan = schedule(family, RANKS, MICROBATCHES)
    stages = plan.problem.stages
    program = compile_schedule(plan, data_parallel=True, post_validation=family != "1f1b")
    rank = mesh.get_local_rank("pp")
    build = source.stages(stages)
    modules = {
        s: _sharded(made(build[s], s), mesh["dp"], policy)
        for s in plan.problem.placement.stages_of(rank)
    }
    return Pipeline(
        program,
        modules,
        loss=source.loss,
        group=mesh["pp"].get_group(),
        data_group=mesh["dp"].get_group(),
        **{"optimizer": source.optimizer} | options,  # type: ignore[arg-type]
    )


def _sharded(
    module: nn.Module, mesh: DeviceMesh, policy: MixedPrecisionPolicy | None = None
) -> nn.Module:
    """Each block by itself, and then the rest."""
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    for block in getattr(module, "blocks", ()):
        shard(block)
    return shard(module)


def _step(pipeline: Pipeline, source: Odd, mesh: DeviceMesh, step: int) -> None:
    at = mesh.get_local_rank("dp") * MICROBATCHES
    inputs, targets = source.batch(step, REPLICAS * MICROBATCHES)
    pipeline.step(inputs[at : at + MICROBATCHES], target=targets[at : at + MICROBATCHES])


def _share(pipeline: Pipeline) -> float:
    own = whole = 0
    for s, module in pipeline.modules.items():
        state = pipeline.optimizers[s].state
        for parameter in module.parameters():
            tensors = [parameter, parameter.grad, *state[parameter].values()]
            for x in tensors:
                if isinstance(x, DTensor):
                    own += x.to_local().nbytes
                    whole += x.nbytes
    assert whole > 0
    return own / whole


def _left(pipeline: Pipeline) -> int:
    return sum(
        p.untyped_storage().size() for s in pipeline.modules for p in pipeline.store.parameters(s)
    )


def _refused(mesh: DeviceMesh) -> list[str]:
    """What is said of a stage sharded in part, of no data group, and of two dtypes."""
    source = Odd()
    plan = schedule("1f1b", RANKS, MICROBATCHES)
    rank = mesh.get_local_rank("pp")
    modules = [made(source.stages(RANKS)[rank], rank) for _ in range(3)]
    fully_shard(modules[0].blocks, mesh=mesh["dp"])  # type: ignore[arg-type]
    for module in modules[1:]:
        _sharded(module, mesh["dp"])
    group, data_group = mesh["pp"].get_group(), mesh["dp"].get_group()
    cases: list[tuple[bool, dict[str, object]]] = [
        (True, {"data_group": data_group}),
        (False, {}),
        (True, {"data_group": data_group, "param_dtype": torch.float32}),
    ]
    said = []
    for module, (averages, options) in zip(modules, cases, strict=True):
        program = compile_schedule(plan, data_parallel=averages)
        with pytest.raises(InputError) as error:
            Pipeline(program, {rank: module}, loss=source.loss, group=group, **options)  # type: ignore[arg-type]
        said.append(str(error.value))
    dist.barrier()
    return said


def _mixed(mesh: DeviceMesh) -> float:
    """Of gradients of products in bfloat16, which add up over two steps; -1 where they are not
    float32."""
    source = Odd(torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    pipeline = _pipeline("zb-h1", source, mesh, policy, optimizer=None)
    for _ in range(2):
        _step(pipeline, source, mesh, 0)
    _, expected = reference(source, RANKS, REPLICAS * MICROBATCHES)
    twice = {name: 2 * gradient for name, gradient in expected.items()}
    shards = named(pipeline.modules, gradient).items()
    apart = worst({name: shard.full_tensor() for name, shard in shards}, twice)  # type: ignore[attr-defined]
    whole = [p.grad_dtype for s in pipeline.modules for p in pipeline.store.parameters(s)]
    pipeline.close()
    return apart if set(whole) == {torch.float32} else -1.0


def _returned(mesh: DeviceMesh) -> Returned:
    source = Odd()
    pipeline = _pipeline("1f1b", source, mesh, optimizer=None)
    _step(pipeline, source, mesh, 0)
    whole = pipeline.store.parameters
    pipeline.close()
    ((stage, used),) = pipeline.modules.items()
    fresh = _sharded(made(source.stages(RANKS)[stage], stage), mesh["dp"])
    tokens, _ = source.batch(1, REPLICAS)
    x = tokens[mesh.get_local_rank("dp")]
    inputs = x if stage == 0 else nn.functional.one_hot(x % WIDTH, WIDTH).to(source.dtype)
    gradients, left = [], []
    for module in (used, fresh):
        module.zero_grad()
        output = module(inputs)
        left.append(_left(pipeline))
        output.square().sum().backward()
        left.append(_left(pipeline))
        gradients.append([p.grad.to_local() for p in module.parameters()])  # type: ignore[union-attr]
    same = all(map(torch.equal, *gradients))
    return Returned(same, sum(p.nbytes for p in whole(stage)), left[0], left[1])
