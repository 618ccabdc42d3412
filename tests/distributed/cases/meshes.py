"""What the tests of meshes run on each process, compared with one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from pipeloom.compiler import compile_schedule
from pipeloom.runtime import Pipeline
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue
from tests.support.mesh_models import EXPERTS, Source, as_dtensors, cut
from tests.support.models import reference
from tests.support.schedules import schedule

MICROBATCHES, STEPS, CLIP = 3, 2, 1e-2


@dataclass(frozen=True)
class Case:
    """``shape``: of the mesh, by axis; ``sharded``: stages are wrapped in ``fully_shard`` over the
    axes named, beside ``ep`` their experts alone, all else over that, too (by ``ep`` alone nothing
    is: experts are DTensors); ``options``: the pipeline's.
    """

    family: str
    shape: tuple[tuple[str, int], ...]
    sequence: bool = False
    sharded: tuple[str, ...] = ()
    tie: bool = True
    ahead: bool = False
    options: tuple[tuple[str, Any], ...] = field(default=(), compare=False)
    bound: float = 1e-12

    def __str__(self) -> str:
        axes = "x".join(f"{name}{size}" for name, size in self.shape)
        marks = {
            "sequence": self.sequence,
            "ahead": self.ahead,
            "tied": self.tie,
        }
        words = [name for name, on in marks.items() if on]
        more = [*self.sharded, *(name for name, _ in self.options)]
        return " ".join([self.family, axes, *words, *more]).strip()


@dataclass(frozen=True)
class Outcome:
    """How far parameters after steps that are clipped are from one process's, relative to their
    largest value; products whose weight gradient a W made."""

    parameters: float
    deferred: int


def run_cases(cases: Sequence[Case]) -> list[Outcome]:
    return [run_case(case) for case in cases]


def run_case(case: Case) -> Outcome:
    sizes = dict(case.shape)
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    source = Source(experts="ep" in sizes, tie=case.tie, clip=CLIP)
    pipeline = _pipeline(case, source, mesh)
    replicas, at = _replicas(case, mesh)
    mine = slice(at * MICROBATCHES, (at + 1) * MICROBATCHES)
    with Counting() as counted, loss_parallel():
        for step in range(STEPS):
            inputs, targets = source.batch(step, replicas * MICROBATCHES)
            pipeline.step(inputs[mine], target=targets[mine])
    pipeline.finish()
    total = replicas * MICROBATCHES
    _, after = reference(source, pipeline.num_stages, total, steps=STEPS, train=True)
    assert not pipeline.eager_stages, pipeline.eager_stages
    pipeline.close()
    return Outcome(_apart(pipeline, after), counted[0])


def _replicas(case: Case, mesh: DeviceMesh) -> tuple[int, int]:
    names = [name for name, _ in case.shape if name not in ("pp", "tp")]
    count, at = 1, 0
    for name in names:
        count, at = count * mesh[name].size(), at * mesh[name].size() + mesh.get_local_rank(name)
    return count, at


def _pipeline(case: Case, source: Source, mesh: DeviceMesh) -> Pipeline:
    names = dict(case.shape)
    plan = schedule(case.family, names["pp"], MICROBATCHES)
    stages = plan.problem.stages
    data = _data(mesh)
    program = compile_schedule(
        plan,
        tied=[(0, stages - 1)] if case.tie else [],
        data_parallel=data is not None,
        post_validation=case.ahead,
    )
    options: dict[str, Any] = {"clip_grad_norm": CLIP, "tied": source.tied(stages)}
    if "ep" in names and not case.sharded:
        options["norm_groups"] = {"*.experts.*": mesh["ep"].get_group()}
    return Pipeline(
        program,
        {s: partial(_stage, case, source, mesh, s, stages) for s in range(stages)},
        loss=source.loss,
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        group=mesh["pp"].get_group(),
        data_group=None if data is None else data.get_group(),
        **options | dict(case.options),
    )


@cache
def _data(mesh: DeviceMesh) -> DeviceMesh | None:
    """The processes with other microbatches, as one axis."""
    assert mesh.mesh_dim_names is not None
    names = tuple(name for name in mesh.mesh_dim_names if name not in ("pp", "tp"))
    if len(names) > 1:
        return mesh[names]._flatten("data")
    return mesh[names] if names else None


def _stage(case: Case, source: Source, mesh: DeviceMesh, s: int, stages: int) -> nn.Module:
    names = dict(case.shape)
    experts = mesh["ep"].get_group() if "ep" in names else None
    module = source.stage(s, stages, experts)
    if "tp" in names:
        cut(module, mesh["tp"], case.sequence)
    if case.sharded:
        over = mesh[case.sharded if len(case.sharded) > 1 else case.sharded[0]]
        parts = [module.get_submodule("block")]
        if experts is not None:
            parts = list(module.get_submodule("block.experts").children())
            for expert in parts:
                as_dtensors(expert, mesh["ep"])
        if case.sharded != ("ep",):
            for part in parts:
                fully_shard(part, mesh=over)
            fully_shard(module, mesh=over if experts is None else _data(mesh))
    return module


class Counting:
    """How many weight gradients W's make within."""

    def __enter__(self) -> list[int]:
        found, self.run = [0], WeightQueue.run
        run = self.run

        def counted(queue: WeightQueue) -> None:
            found[0] += len(queue)
            run(queue)

        WeightQueue.run = counted  # type: ignore[method-assign]
        return found

    def __exit__(self, *_: object) -> None:
        WeightQueue.run = self.run  # type: ignore[method-assign]


def _apart(pipeline: Pipeline, expected: dict[str, Tensor]) -> float:
    worst = 0.0
    for s, module in pipeline.modules.items():
        for name, parameter in module.named_parameters():
            found: Any = parameter.detach()
            if isinstance(found, DTensor):
                assert found.placements == parameter.placements  # type: ignore[attr-defined]
                found = found.full_tensor()
            wanted = _wanted(expected, s, name, found)
            assert found.shape == wanted.shape
            largest = float(wanted.abs().max()) or 1.0  # an expert may get no tokens
            value = float((found - wanted).abs().max()) / largest
            worst = max(worst, value if value == value else float("inf"))
    return worst


def _wanted(expected: dict[str, Tensor], stage: int, name: str, found: Tensor) -> Tensor:
    """One process's; of experts that are one DTensor those of all processes."""
    wanted = expected[f"{stage}.{name}"]
    if found.shape == wanted.shape:
        return wanted
    *path, number, leaf = name.split(".")
    each = range(int(number) % 2, EXPERTS, 2)
    return torch.cat([expected[".".join([str(stage), *path, str(e), leaf])] for e in each])
