"""What the tests of steps that add up run on every rank, and the same in one process."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program
from pipeloom.runtime.pipeline.pipeline import Pipeline
from tests.distributed.cases.gradients import schedule
from tests.support.hub import own
from tests.support.models import TinyTransformer, Untied, full, named, whole, worst

UPDATES, EACH, CLIP = 2, 3, 0.5  # updates, steps for each, and the norm that they are clipped to


def added_up(
    program: Program,
    source: TinyTransformer,
    options: dict[str, Any] | None = None,
    *,
    replica: tuple[int, int] = (0, 1),
    mesh: DeviceMesh | None = None,
) -> tuple[float, int, float | None]:
    """How far the worst parameter is from one process's, how many were compared, the last norm."""
    count, microbatches = program.schedule.problem.stages, program.schedule.problem.microbatches
    settings: Any = {"clip_grad_norm": CLIP, "scale_grads": False} | (options or {})
    stages: Any = source.stages(count)
    if mesh is not None:
        stages = [partial(_in_shards, stage, mesh) for stage in stages]
    pipeline = Pipeline(
        program,
        stages,
        loss=source.loss,
        optimizer=source.optimizer,
        tied=source.tied(count),
        transport=own(),
        **settings,
    )
    index, replicas = replica
    for step in range(UPDATES * EACH):
        inputs, targets = source.batch(step, microbatches * replicas)
        mine = slice(index * microbatches, (index + 1) * microbatches)
        pipeline.step(inputs[mine], target=targets[mine], update=step % EACH == EACH - 1)
    pipeline.finish()
    found = {name: full(value) for name, value in named(pipeline.modules).items()}
    norm = pipeline.grad_norm
    pipeline.close()
    expected, wanted = one_process(source, count, microbatches, replicas)
    if norm is not None:
        assert abs(norm - wanted) <= 1e-12 * wanted
        assert norm > CLIP
    return worst(found, expected), len(found), norm


def one_process(
    source: TinyTransformer, stages: int, microbatches: int, replicas: int
) -> tuple[dict[str, Tensor], float]:
    """Parameters after the updates, and the last norm before it was clipped."""
    model = whole(source, stages)
    optimizer = source.optimizer(model.parameters())
    norm = torch.zeros(())
    for update in range(UPDATES):
        model.zero_grad()
        for step in range(EACH):
            batch = source.batch(update * EACH + step, microbatches * replicas)
            for x, y in zip(*batch, strict=True):
                (source.loss(model(x), y) / replicas).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    trained = model.named_parameters(remove_duplicate=False)
    return {name: p.detach() for name, p in trained}, float(norm)


def in_replicas(
    program: Program, ahead: Program, apart: Program
) -> list[tuple[float, int, float | None]]:
    """Two replicas of two ranks: with copies of the stages, steps ahead of the norm, and shards."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    dp = mesh["dp"]
    options = {"group": mesh["pp"].get_group(), "data_group": dp.get_group()}
    run = partial(added_up, options=options, replica=(dp.get_local_rank(), 2))
    tied, untied = TinyTransformer(), Untied()
    _check_counts(program, tied, options, dp.get_local_rank())
    return [run(program, tied), run(ahead, tied), run(apart, untied, mesh=dp)]


def _check_counts(
    program: Program, source: TinyTransformer, options: dict[str, Any], replica: int
) -> None:
    """Replicas that begin with unlike numbers of microbatches, or one of which refuses its own,
    raise alike, all of them, and go on."""
    given: Any = options
    half = compile_schedule(schedule("1f1b", 2, 2), tied=[(0, 1)], data_parallel=True)
    pipeline = Pipeline.from_source(program, source, programs=lambda _: half, **given)
    with pytest.raises(InputError, match=r"^microbatches: .* on all replicas, got \[4, 2\]$"):
        step(pipeline, source, 2 if replica else 4)
    where = "" if replica else "replica 1, "
    with pytest.raises(InputError, match=f"^{where}rank 0: microbatches: expected a number"):
        step(pipeline, source, 0 if replica else 4)
    for count in (2, 4):
        step(pipeline, source, count)
    pipeline.close()


def step(pipeline: Pipeline, source: TinyTransformer, count: int) -> None:
    inputs, targets = source.batch(0, count)
    pipeline.step(inputs, target=targets, microbatches=count)


def _in_shards(stage: Any, mesh: DeviceMesh) -> nn.Module:
    module: nn.Module = stage()
    fully_shard(module, mesh=mesh)
    return module
