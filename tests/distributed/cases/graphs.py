"""Pipelines of stages as graphs trained beside the same ones of modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from pipeloom.compiler import compile_schedule
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.runtime.rank.loss_scale import LossScale
from pipeloom.solver.families import build_family
from tests.distributed.cases.gradients import profile

WIDTH, ROWS, MICROBATCHES, STEPS = 8, 3, 4, 3
OPTIONS: dict[str, dict[str, Any]] = {
    "skips": {"skips": [(0, 3)]},
    "mixed precision and a loss scale": {
        "param_dtype": torch.bfloat16,
        "reduce_dtype": torch.float32,
        "loss_scale": LossScale(1024.0, interval=2),
    },
}
REPLICAS = "replicas"


class Part(nn.Module):
    """A stage that hands on a skip where it ``starts`` one, and takes it where it is given one."""

    def __init__(self, *, starts: bool) -> None:
        super().__init__()
        self.norm, self.product, self.starts = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), starts

    def forward(self, x: Tensor, *skip: Tensor) -> Any:
        x = x + self.product(self.norm(x)).tanh() + sum(skip)
        return (x, x.sin()) if self.starts else x


def _part(stage: int, *, starts: bool) -> Part:
    """With weights of its own generator."""
    part, generator = Part(starts=starts), torch.Generator().manual_seed(stage)
    for parameter in part.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return part


def run_cases(names: Sequence[str]) -> dict[str, list[str]]:
    """On every rank of one launch: of each case what differs, and why a stage was no graph."""
    return {name: _differing(name) for name in names}


def _differing(name: str) -> list[str]:
    alike = name == REPLICAS
    options: dict[str, Any] = dict(OPTIONS.get(name, {}))
    if alike:
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))
        options = {"group": mesh["pp"].get_group(), "data_group": mesh["dp"].get_group()}
    pipelines = [
        _pipeline(options, replicas=alike),
        _pipeline(options | {"stages_as": "aten"}, replicas=alike),
    ]
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(MICROBATCHES * ROWS, WIDTH, generator=generator)
        for pipeline in pipelines:
            pipeline.step(x, target=x.flip(0))
    wanted, found = map(_parameters, pipelines)
    different = [key for key, x in wanted.items() if not torch.equal(x, found[key])]
    why = [*pipelines[1].eager_stages.values()]
    assert pipelines[1].graphs == len(pipelines[1].modules)
    for pipeline in reversed(pipelines):
        pipeline.close()
    return different + why


def _pipeline(options: Mapping[str, Any], *, replicas: bool) -> Pipeline:
    ranks = 1 if replicas else 2
    schedule = build_family("interleaved-1f1b:2", profile(ranks), MICROBATCHES)
    count = schedule.problem.stages
    skips = bool(options.get("skips"))
    stages = [_part(s, starts=skips and s == 0) for s in range(count)]
    program = compile_schedule(schedule, data_parallel=replicas)
    return Pipeline(
        program,
        stages,
        loss=functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        **options,
    )


def _parameters(pipeline: Pipeline) -> dict[str, Tensor]:
    pipeline.finish()
    named = [(s, m.named_parameters()) for s, m in pipeline.modules.items()]
    return {f"{s}.{name}": p.detach() for s, each in named for name, p in each}
