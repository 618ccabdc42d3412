"""What the tests of the norm over shards run: shards that torch knows nothing of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from pipeloom.ir import InputError, Program
from pipeloom.runtime import LossScale, Pipeline
from tests.support.models import full
from tests.support.schedules import schedule

WIDTH, HIDDEN, EXPERTS = 8, 12, 3
MICROBATCHES, ROWS, STEPS, CLIP = 3, 6, 3, 1e-2
SHARDS = ("*.up.*", "*.down.weight", "*.experts.*")
GROUP = dist.ProcessGroup


class Enter(torch.autograd.Function):
    """What goes into shards: its gradient is summed over them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: GROUP) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        dy = dy.clone()
        dist.all_reduce(dy, group=ctx.group)
        return dy, None


class Leave(torch.autograd.Function):
    """What comes out of shards is summed over them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: GROUP) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy, None


class Split(nn.Module):
    """A layer, whose hidden units are cut over ``group``, and one of whose experts each has some.

    With no group it is whole. The second expert gets no tokens, the others every other one.
    """

    def __init__(self, group: GROUP | None = None) -> None:
        super().__init__()
        self.group = group
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.experts = nn.ModuleDict({str(e): nn.Linear(WIDTH, WIDTH) for e in range(EXPERTS)})
        if group is not None:
            self._cut(group.rank(), group.size())

    def _cut(self, at: int, parts: int) -> None:
        self.up.weight = nn.Parameter(self.up.weight.chunk(parts)[at].detach().clone())
        self.up.bias = nn.Parameter(self.up.bias.chunk(parts)[at].detach().clone())
        self.down.weight = nn.Parameter(self.down.weight.chunk(parts, 1)[at].detach().clone())
        for e in range(EXPERTS):
            if min(e, parts - 1) != at:
                del self.experts[str(e)]

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        if self.group is not None:
            h = Enter.apply(h, self.group)  # type: ignore[no-untyped-call]
        own = nn.functional.linear(torch.tanh(self.up(h)), self.down.weight)
        chosen = torch.arange(len(x)).remainder(2).mul(2)
        for e, expert in self.experts.items():
            rows = chosen == int(e)
            if rows.any():
                own = own.index_put((rows,), own[rows] + expert(h[rows]))
        if self.group is not None:
            own = Leave.apply(own, self.group)  # type: ignore[no-untyped-call]
        out: Tensor = x + own + self.down.bias
        return out


@dataclass(frozen=True)
class Case:
    """``ranks`` by shards, or one rank and replicas by shards, ``sharded`` once more over these."""

    family: str
    ranks: int = 2
    ahead: bool = False
    sharded: bool = False

    def __str__(self) -> str:
        marks = {"ahead": self.ahead, "replicas": self.ranks == 1, "fully_shard": self.sharded}
        return " ".join([self.family, *(name for name, on in marks.items() if on)])


@dataclass(frozen=True)
class Outcome:
    """How far parameters are from one process's after the steps; the norms, here and there."""

    apart: float
    norms: list[float]
    expected: list[float]


def stages(count: int, group: GROUP | None) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(Split(group)).double() for _ in range(count)]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).pow(2).mean()


def batch(step: int, microbatches: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    shape = (microbatches * ROWS, WIDTH)
    x, y = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return x, y


def run_cases(cases: Sequence[Case]) -> list[Outcome]:
    return [_run(case) for case in cases]


def _mesh(ranks: int) -> DeviceMesh:
    return init_device_mesh("cpu", (2 // ranks, ranks, 2), mesh_dim_names=("dp", "pp", "tp"))


def _run(case: Case) -> Outcome:
    mesh = _mesh(case.ranks)
    replicas, tensor = mesh["dp"].size(), mesh["tp"].get_group()
    rank, replica = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
    module = stages(case.ranks, tensor)[rank]
    if case.sharded:
        fully_shard(module, mesh=mesh["dp"])
    plan = schedule(case.family, case.ranks, MICROBATCHES)
    pipeline = Pipeline(
        compile_schedule(plan, data_parallel=replicas > 1, post_validation=case.ahead),
        {rank: module},
        loss=loss,
        optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        clip_grad_norm=CLIP,
        norm_groups=dict.fromkeys(SHARDS, tensor),
        group=mesh["pp"].get_group(),
        data_group=mesh["dp"].get_group() if replicas > 1 else None,
    )
    norms = []
    for step in range(STEPS):
        x, y = (t.chunk(replicas)[replica] for t in batch(step, replicas * MICROBATCHES))
        pipeline.step(x, target=y)
        pipeline.finish()
        norms.append(pipeline.grad_norm or 0.0)
    whole, expected = one_process(case.ranks, replicas * MICROBATCHES)
    apart = _apart(module, whole[rank], tensor)
    pipeline.close()
    return Outcome(apart, norms, expected)


def one_process(count: int, microbatches: int) -> tuple[list[nn.Module], list[float]]:
    whole = stages(count, None)
    model, norms = nn.Sequential(*whole), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step, microbatches)
        for part, target in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
            (loss(model(part), target) / microbatches).backward()  # type: ignore[no-untyped-call]
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
    return whole, norms


def _apart(module: nn.Module, whole: nn.Module, group: GROUP) -> float:
    """The largest difference of a parameter, relative to its largest value."""
    exact = nn.Sequential(*whole.children())
    exact[0]._cut(group.rank(), group.size())  # type: ignore[operator]
    found = dict(module.named_parameters())
    assert found.keys() == dict(exact.named_parameters()).keys()
    worst = 0.0
    for name, wanted in exact.named_parameters():
        value = full(found[name])
        worst = max(worst, float(((value - wanted).abs().max() / wanted.abs().max()).detach()))
    return worst


def refusals() -> dict[str, str]:
    """What is said of groups that are missing or do not fit."""
    mesh = _mesh(2)
    rank, group, tensor = mesh.get_local_rank("pp"), mesh["pp"].get_group(), mesh["tp"].get_group()
    program = compile_schedule(schedule("1f1b", 2, MICROBATCHES))
    own = stages(2, tensor)[rank]
    table = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    parallelize_module(table, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    cases: dict[str, tuple[nn.Module, dict[str, Any]]] = {
        "missing": (own, {}),
        "with a loss scale": (own, {"clip_grad_norm": None, "loss_scale": LossScale(2.0)}),
        "of another rank": (own, {"norm_groups": {SHARDS[0]: group}}),
        "of no parameter": (own, {"norm_groups": {"*.gate": tensor}}),
        "forgotten": (own, {"norm_groups": {SHARDS[2]: tensor, SHARDS[1]: tensor}}),
        "experts forgotten": (own, {"norm_groups": dict.fromkeys(SHARDS[:2], tensor)}),
        "of a DTensor": (table, {"norm_groups": {"0.*": tensor}}),
        "no group": (own, {"norm_groups": {SHARDS[0]: mesh["tp"]}}),
    }
    said = {name: _refused(program, {rank: m}, group, **o) for name, (m, o) in cases.items()}
    for fine in ({"norm_groups": {}}, {"clip_grad_norm": None}):
        _pipeline(program, {rank: own}, group, **fine).close()
    _pipeline(program, {rank: table}, group, memory=False).close()  # it knows of all shards itself
    return said


def _pipeline(
    program: Program, modules: dict[int, nn.Module], group: GROUP, **options: Any
) -> Pipeline:
    chosen = {"optimizer": partial(torch.optim.SGD, lr=0.1), "clip_grad_norm": CLIP} | options
    return Pipeline(program, modules, loss=loss, group=group, **chosen)


def _refused(*args: Any, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        _pipeline(*args, **options)
    dist.barrier()
    return str(error.value)
