"""Stages in ``fully_shard`` hold shards, on two replicas of two ranks; stages that do not fit their
mesh, or reduce by themselves, are refused in a line.

That meshes train as one process does is in `tests/parity`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable import replicate
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_with_fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError
from pipeloom.runtime import ExecutionError, Pipeline, ShapeError
from tests.support.launched import in_one_launch
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


def of_shards() -> Found:
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


def linear(mesh: DeviceMesh | None = None, style: Any = None) -> Any:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    return module if mesh is None else parallelize_module(module, mesh, {"0": style})


def within(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return nn.Sequential(DistributedDataParallel(module, process_group=mesh.get_group()))


def compiled(module: nn.Module, mesh: DeviceMesh) -> Any:
    return torch.compile(DistributedDataParallel(module, process_group=mesh.get_group()))


def by_group(wrap: Any, **options: Any) -> Callable[[nn.Module, DeviceMesh], nn.Module]:
    return lambda module, mesh: wrap(module, process_group=mesh.get_group(), **options)


CPU = torch.device("cpu")
WRAPS: dict[str, Callable[[nn.Module, DeviceMesh], nn.Module]] = {
    "it is wrapped in DistributedDataParallel": by_group(DistributedDataParallel),
    "0 is wrapped in DistributedDataParallel": within,
    "_orig_mod is wrapped in DistributedDataParallel": compiled,
    "it is wrapped in FullyShardedDataParallel": by_group(FullyShardedDataParallel, device_id=CPU),
    "it is wrapped in replicate": by_group(replicate),
    "it is wrapped in replicate, ": lambda module, mesh: replicate_with_fsdp(module, mesh=mesh),
}
"""What reduces by itself, where ``data_group`` should."""


def refusals() -> dict[str, str]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    alone = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "dp", "ep"))
    world = init_device_mesh("cpu", (4,), mesh_dim_names=("all",))
    tp, at = mesh["tp"], mesh.get_local_rank("tp")
    columns = partial(ColwiseParallel, output_layouts=Replicate())
    replicas = {"data_group": tp.get_group()}
    experts = nn.ModuleDict({str(at): nn.Linear(WIDTH, WIDTH)})
    hands_on = linear(tp, ColwiseParallel(use_local_output=False))
    both = {"data_group": world.get_group()}
    named = {"norm_groups": {"0.*": alone["ep"].get_group()}}
    judged = {"clip_grad_norm": 1.0}
    first, second = ("dp", "ep") if dist.get_rank() in (0, 3) else ("ep", "dp")
    unordered = {"0.weight": alone[first].get_group(), "0.bias": alone[second].get_group()}
    overlapping = {"*.weight": tp.get_group(), "*.bias": mesh.get_group("pp")}
    part, block, bare = linear(), nn.Sequential(linear(), linear()), linear()
    fully_shard(part, mesh=alone["dp"])
    fully_shard(block[0], mesh=tp)
    fully_shard(bare, mesh=tp)
    tied = {"tied": [[(0, "0.weight"), (1, "0.weight")]]}
    return {
        "ties": _said([linear(tp, columns()), linear()], mesh, **tied),
        "copies averaged": _said([linear(tp, RowwiseParallel())] * 2, mesh, **replicas),
        "experts unnamed": _said([experts] * 2, mesh, **replicas),
        "some experts": _said([linear()], alone, **both, **named),
        "norm beside others": _said([linear()] * 2, mesh, **judged),
        "norm over ranks": _said([linear()] * 2, mesh, norm_groups=overlapping),
        "norm in another order": _said([linear()], alone, norm_groups=unordered),
        "sharded in part": _said([part], alone, **both),
        "block sharded": _said([block] * 2, mesh, **replicas),
        "shards averaged by nobody": _said([bare] * 2, mesh),
        "over ranks": _said([linear(world, columns())] * 2, mesh),
        "output": _said([hands_on, linear()], mesh),
        "saved beside others": _unsaved(alone["pp"]),
        "saved of shards": _unsaved(alone["pp"], {"0.weight": tp.get_group()}),
        **{what: _said([wrap(linear(), tp)] * 2, mesh) for what, wrap in WRAPS.items()},
    }


def _said(stages: Sequence[nn.Module], mesh: DeviceMesh, **options: Any) -> str:
    """By a pipeline of these stages, one per rank, or by its first step."""
    program = compile_schedule(
        schedule("1f1b", len(stages), MICROBATCHES),
        tied=[(0, 1)] if "tied" in options else [],
        data_parallel="data_group" in options,
    )
    rank, x = mesh.get_local_rank("pp"), torch.randn(MICROBATCHES, 4, WIDTH)
    options |= {"optimizer": partial(torch.optim.SGD, lr=0.1), "group": mesh["pp"].get_group()}
    with pytest.raises((InputError, ShapeError, ExecutionError)) as error:
        Pipeline(program, {rank: stages[rank]}, loss=_loss, **options).step(x, target=x)
    dist.barrier()
    return str(error.value)


def _unsaved(mesh: DeviceMesh, norm_groups: Any = None) -> str:
    """By a pipeline of one rank, beside others, that is to be saved."""
    program = compile_schedule(schedule("1f1b", 1, MICROBATCHES))
    group = mesh.get_group()
    pipeline = Pipeline(program, [linear()], group=group, norm_groups=norm_groups)
    with pytest.raises(InputError) as error:
        pipeline.state_dict()
    return str(error.value)


@cache
def results() -> tuple[list[Found], list[dict[str, str]]]:
    """Of each process what it found of shards, and what is refused."""
    shards, said = in_one_launch(4, [(of_shards, ()), (refusals, ())])
    return shards, said


def test_each_process_keeps_its_shard_alone_between_steps_and_adds_up_in_its_dtype() -> None:
    for found in results()[0]:
        assert found.left == 0
        assert 0.4 < found.share < 0.6
        assert 0 < found.lower < 0.05


def test_after_close_fully_shard_reduces_and_releases_by_itself() -> None:
    for found in results()[0]:
        assert found.same
        assert 0 < found.forward < found.whole  # the root keeps its own until the backward
        assert found.backward == 0


SAID = {
    "ties": "expected copies of one kind, got [16, 16] trained S(0) at (",
    "copies averaged": "0.weight: expected a copy of it on each process of data_group, [",
    "experts unnamed": "0.bias is not on all of them",
    "some experts": "0.weight: expected a copy of it on each process of data_group, [0, 1, 2, 3]",
    "sharded in part": "expected fully_shard over the processes of data_group, [0, 1, 2, 3], got",
    "block sharded": "expected fully_shard on the stage itself",
    "shards averaged by nobody": "data_group: expected",
    "over ranks": "expected one rank of each pipeline, got processes [",
    "norm beside others": "as 4 processes run and 2 judge steps by one norm; or {}",
    "norm over ranks": "expected one rank of each pipeline, got processes [",
    "norm in another order": "norm_groups: group [0, 1]: expected one place in all lists",
    "output": "expected this process's part of its output, got a DTensor",
    "saved beside others": "norm_groups: expected the process groups over which",
    "saved of shards": "norm_groups: '0.weight': expected a DTensor, whose",
}


@pytest.mark.parametrize("name", [*SAID, *WRAPS])
def test_what_does_not_fit_a_mesh_is_told(name: str) -> None:
    """What reduces by itself is named by whichever rank was first."""
    line = results()[1][0][name]
    assert "\n" not in line
    assert SAID.get(name, "data_group") in line
    assert name in SAID or any(f"stages[{rank}]: {name}" in line for rank in (0, 1))
