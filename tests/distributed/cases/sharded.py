"""Stages wrapped in ``fully_shard`` on four processes: two replicas of two ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from pipeloom.compiler import compile_schedule
from pipeloom.runtime import Pipeline
from tests.support.models import difference, full, gradient, named
from tests.support.schedules import schedule

REPLICAS, RANKS, MICROBATCHES, WIDTH = 2, 2, 3, 16


@dataclass(frozen=True)
class Found:
    """After steps, ``share``: bytes of parameters, gradients and optimizer state, over those of
    whole stages; ``left``: bytes of whole parameters that are still there.

    ``lower``: how far gradients of products in bfloat16, which add up over two steps, are from
    float32's; -1 where they are not float32.

    Of a stage after ``close``, trained by itself, ``same``: whether its gradients are those of one
    that no pipeline had; ``whole``, ``forward``, ``backward``: bytes of whole parameters in all,
    after a forward, and after the backward.
    """

    share: float
    left: int
    lower: float
    same: bool
    whole: int
    forward: int
    backward: int


def found() -> Found:
    mesh = init_device_mesh("cpu", (REPLICAS, RANKS), mesh_dim_names=("dp", "pp"))
    return Found(*_kept(mesh), _lower(mesh), *_returned(mesh))


def _kept(mesh: DeviceMesh) -> tuple[float, int]:
    adam = partial(torch.optim.Adam, lr=0.1)
    pipeline = _pipeline("zb-v", mesh, optimizer=adam, clip_grad_norm=1e9)
    for _ in range(2):
        _step(pipeline, mesh)
    pipeline.finish()
    kept = [x for s, m in pipeline.modules.items() for x in _of(m, pipeline.optimizers[s])]
    share = sum(x.to_local().nbytes for x in kept) / sum(x.nbytes for x in kept)
    left = _left(pipeline)
    pipeline.close()
    return share, left


def _of(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Parameters, gradients and what the optimizer keeps of them."""
    found = [x for p in module.parameters() for x in (p, p.grad, *optimizer.state[p].values())]
    return [x for x in found if isinstance(x, DTensor)]


def _lower(mesh: DeviceMesh) -> float:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    pipeline = _pipeline("zb-h1", mesh, policy)
    for _ in range(2):
        _step(pipeline, mesh)
    plain = {s: _stage(s) for s in range(RANKS)}
    x, y = _batch()
    (2 * _loss(nn.Sequential(*plain.values())(x), y)).backward()
    wanted, own = named(plain, gradient), named(pipeline.modules, gradient)
    apart = max(difference(full(grad), wanted[name]) for name, grad in own.items())
    dtypes = {p.grad_dtype for s in pipeline.modules for p in pipeline.store.parameters(s)}
    pipeline.close()
    return apart if dtypes == {torch.float32} else -1.0


def _returned(mesh: DeviceMesh) -> tuple[bool, int, int, int]:
    pipeline = _pipeline("1f1b", mesh)
    _step(pipeline, mesh)
    pipeline.close()
    ((stage, used),) = pipeline.modules.items()
    gradients, left = [], []
    for module in (used, _sharded(_stage(stage), mesh)):
        module.zero_grad()
        output = module(torch.ones(3 + mesh.get_local_rank("dp"), WIDTH))
        left.append(_left(pipeline))
        output.square().sum().backward()
        left.append(_left(pipeline))
        gradients.append([full(p.grad) for p in module.parameters() if p.grad is not None])
    whole = sum(p.nbytes for p in pipeline.store.parameters(stage))
    return all(map(torch.equal, *gradients)), whole, left[0], left[1]


def _stage(stage: int) -> nn.Module:
    """Odd sizes, which do not divide by two."""
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH + 1), nn.Tanh(), nn.Linear(WIDTH + 1, WIDTH))


def _sharded(
    module: Any, mesh: DeviceMesh, policy: MixedPrecisionPolicy | None = None
) -> nn.Module:
    """The first product by itself, and then the rest."""
    for part in (module[0], module):
        fully_shard(part, mesh=mesh["dp"], mp_policy=policy or MixedPrecisionPolicy())
    return module


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output.float(), target)


def _pipeline(
    family: str, mesh: DeviceMesh, policy: MixedPrecisionPolicy | None = None, **options: Any
) -> Pipeline:
    plan = schedule(family, RANKS, MICROBATCHES)
    mine: Iterable[int] = plan.problem.placement.stages_of(mesh.get_local_rank("pp"))
    return Pipeline(
        compile_schedule(plan, data_parallel=True, post_validation=family == "zb-v"),
        {s: _sharded(_stage(s), mesh, policy) for s in mine},
        loss=_loss,
        group=mesh["pp"].get_group(),
        data_group=mesh["dp"].get_group(),
        **options,
    )


def _batch() -> tuple[Tensor, Tensor]:
    """Of all replicas."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, REPLICAS * MICROBATCHES * 2, WIDTH, generator=generator)
    return x, y


def _step(pipeline: Pipeline, mesh: DeviceMesh) -> None:
    x, y = (each.chunk(REPLICAS)[mesh.get_local_rank("dp")] for each in _batch())
    pipeline.step(x, target=y)


def _left(pipeline: Pipeline) -> int:
    return sum(
        p.untyped_storage().size() for s in pipeline.modules for p in pipeline.store.parameters(s)
    )
