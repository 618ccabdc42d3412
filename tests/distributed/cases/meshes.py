"""What the tests of meshes run on each process, compared with one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from pipeloom.compiler import compile_schedule
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue
from pipeloom.runtime.pipeline.pipeline import Pipeline
from tests.support.mesh_models import EXPERTS, Source, as_dtensors, cut
from tests.support.models import reference
from tests.support.schedules import schedule

MICROBATCHES, STEPS = 3, 2


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
    clip: float = 1e9
    options: tuple[tuple[str, Any], ...] = field(default=(), compare=False)
    bound: float = 1e-12

    def __str__(self) -> str:
        axes = "x".join(f"{name}{size}" for name, size in self.shape)
        marks = {
            "sequence": self.sequence,
            "ahead": self.ahead,
            "tied": self.tie,
            "clipped": self.clip < 1,
        }
        words = [name for name, on in marks.items() if on]
        more = [*self.sharded, *(name for name, _ in self.options)]
        return " ".join([self.family, axes, *words, *more]).strip()


@dataclass(frozen=True)
class Outcome:
    """How far gradients, their norm, and parameters after the steps are from one process's,
    relative to their largest value; bytes held at most; products whose weight gradient a W made."""

    gradients: float
    norm: float
    parameters: float
    peak: int
    deferred: int


def run_cases(cases: Sequence[Case]) -> list[Outcome]:
    return [run_case(case) for case in cases]


def run_case(case: Case) -> Outcome:
    sizes = dict(case.shape)
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    source = Source(experts="ep" in sizes, tie=case.tie, clip=case.clip)
    pipeline, deferred = _pipeline(case, source, mesh), 0
    replicas, at = _replicas(case, mesh)
    count, losses = pipeline.num_stages, []
    total = replicas * MICROBATCHES
    history, wanted = one_process(source, count, total, 1, train=False)
    twice = {f"{s}.{name}" for group in source.tied(count) for s, name in group[1:]}
    norm = sum(float(g.square().sum()) for n, g in wanted.items() if n not in twice) ** 0.5
    factor = min(1.0, case.clip / (norm + 1e-6))
    for step in range(STEPS):
        inputs, targets = source.batch(step, total)
        mine = slice(at * MICROBATCHES, (at + 1) * MICROBATCHES)
        with Counting() as counted, loss_parallel():
            pipeline.step(inputs[mine], target=targets[mine], losses=losses)
        if step == 0:
            pipeline.finish()
            deferred, peak = counted[0], pipeline.peak_memory
            stepped = {name: g * factor for name, g in wanted.items()}
            gradients = _apart(pipeline, stepped, gradients=True)
            found, expected = pipeline.gather([float(x) for x in losses]), history[0][mine]
            assert sorted(x for row in found for x in row) == pytest.approx(sorted(expected))
            if pipeline.grad_norm is not None:
                norm = abs(pipeline.grad_norm - norm) / norm
    pipeline.finish()
    _, after = one_process(source, count, total, STEPS, train=True)
    outcome = Outcome(gradients, norm, _apart(pipeline, after), peak, deferred)
    assert not pipeline.eager_stages, pipeline.eager_stages
    pipeline.close()
    return outcome


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
    options: dict[str, Any] = {"clip_grad_norm": case.clip, "tied": source.tied(stages)}
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


@cache
def one_process(
    source: Source, stages: int, microbatches: int, steps: int, *, train: bool
) -> tuple[list[list[float]], dict[str, Tensor]]:
    return reference(source, stages, microbatches, steps=steps, train=train)


def _apart(pipeline: Pipeline, expected: dict[str, Tensor], *, gradients: bool = False) -> float:
    worst = 0.0
    for s, module in pipeline.modules.items():
        for name, parameter in module.named_parameters():
            found: Any = parameter.grad if gradients else parameter.detach()
            assert found is not None, name
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
