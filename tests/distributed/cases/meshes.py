"""What the tests of meshes run: stages cut over tensor or expert parallel processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

from pipeloom.compiler import compile_schedule
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue
from pipeloom.runtime.pipeline.pipeline import Pipeline
from tests.distributed.cases.gradients import schedule
from tests.support.models import reference

VOCABULARY, WIDTH, HEAD, LENGTH, EXPERTS = 16, 8, 2, 6, 4
MICROBATCHES, STEPS = 3, 2


class Block(nn.Module):
    """Attention by heads and a feed-forward layer, both with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        # a bias of k would move no output, and have no gradient but rounding
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=b) for b in (True, False, True))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        heads = [p(h).unflatten(-1, (-1, HEAD)).transpose(1, 2) for p in (self.q, self.k, self.v)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        added: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return added


class Experts(nn.Module):
    """A layer whose tokens each go to one of the experts, wherever that is; over ``group`` each
    process has some of them, with no group all."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.group = group
        self.gate = nn.Linear(WIDTH, EXPERTS)
        each = [nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)]
        at, count = (0, 1) if group is None else (group.rank(), group.size())
        self.local = EXPERTS // count
        mine = slice(at * self.local, (at + 1) * self.local)
        self.experts = nn.ModuleDict({str(e): each[e] for e in range(EXPERTS)[mine]})

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, WIDTH)
        weight, chosen = self.gate(tokens).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=EXPERTS)
        sent = tokens[order]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        done = self._run(sent, counts) if self.group is None else self._over(sent, counts)
        out: Tensor = x + (done[back] * weight[:, None]).view_as(x)
        return out

    def _over(self, sent: Tensor, counts: Tensor) -> Tensor:
        """All to all, the experts, and back."""
        assert self.group is not None
        there = torch.empty_like(counts)
        dist.all_to_all_single(there, counts, group=self.group)
        table = there.view(-1, self.local)  # from each process, for each expert here
        out, come = counts.view(-1, self.local).sum(1).tolist(), table.sum(1).tolist()
        got = all_to_all_single_autograd(sent, come, out, self.group)
        which = torch.arange(self.local).repeat(len(table)).repeat_interleave(table.flatten())
        order = which.argsort(stable=True)
        done = torch.empty_like(got).index_put((order,), self._run(got[order], table.sum(0)))
        back: Tensor = all_to_all_single_autograd(done, out, come, self.group)
        return back

    def _run(self, tokens: Tensor, counts: Tensor) -> Tensor:
        parts = tokens.split(counts.tolist())
        return torch.cat([e(part) for e, part in zip(self.experts.values(), parts, strict=True)])


def stage(index: int, count: int, group: dist.ProcessGroup | None, experts: bool) -> nn.Module:
    """One block a stage, the first with the embedding, the last with norm and head."""
    with torch.random.fork_rng():
        torch.manual_seed(100 + index)
        parts: list[tuple[str, nn.Module]] = [("block", Experts(group) if experts else Block())]
        if index == 0:
            parts.insert(0, ("embedding", nn.Embedding(VOCABULARY, WIDTH)))
        if index == count - 1:
            parts.append(("norm", nn.LayerNorm(WIDTH)))
            parts.append(("head", nn.Linear(WIDTH, VOCABULARY, bias=False)))
        module = nn.Sequential()
        for name, part in parts:
            module.add_module(name, part)
    return module


def cut(module: nn.Module, mesh: DeviceMesh, sequence: bool) -> nn.Module:
    """Tensor parallel, what lies between stages whole or, with ``sequence``, in parts of it; the
    last stage's output stays in parts of the vocabulary."""
    between = Shard(1) if sequence else Replicate()
    columns, rows = (
        partial(ColwiseParallel, input_layouts=between),
        partial(RowwiseParallel, output_layouts=between),
    )
    plan: dict[str, Any] = {
        **{f"block.{name}": columns() for name in ("q", "k", "v", "up")},
        **{f"block.{name}": rows() for name in ("out", "down")},
        "embedding": rows(input_layouts=Replicate()),
        "head": columns(output_layouts=Shard(-1), use_local_output=False),
    }
    if sequence:
        plan |= dict.fromkeys(("block.norm1", "block.norm2", "norm"), SequenceParallel())
    found = {name for name, _ in module.named_modules()}
    return parallelize_module(module, mesh, {n: style for n, style in plan.items() if n in found})


@dataclass(frozen=True)
class Source:
    """The model as one process has it."""

    experts: bool = False
    tie: bool = True
    dtype: torch.dtype = torch.float64
    rows: int = 2

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        return [partial(self.stage, s, count) for s in range(count)]

    def stage(self, s: int, count: int, group: dist.ProcessGroup | None = None) -> nn.Module:
        return stage(s, count, group, self.experts).to(self.dtype)

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return [[(0, "embedding.weight"), (count - 1, "head.weight")]] if self.tie else []

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1).to(self.dtype), target.flatten())

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        generator = torch.Generator().manual_seed(step)
        shape = (microbatches, self.rows, LENGTH + 1)
        tokens = torch.randint(0, VOCABULARY, shape, generator=generator)
        return list(tokens[..., :-1]), list(tokens[..., 1:])

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@dataclass(frozen=True)
class Case:
    """``shape``: of the mesh, by axis; ``sharded``: stages are wrapped in ``fully_shard`` over the
    axes named; ``options``: the pipeline's."""

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
        marks = {"sequence": self.sequence, "ahead": self.ahead, "tied": self.tie}
        words = [name for name, on in marks.items() if on]
        return " ".join([self.family, axes, *words, *self.sharded, *(n for n, _ in self.options)])


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
    torch.set_num_threads(1)
    return [run_case(case) for case in cases]


def run_case(case: Case) -> Outcome:
    sizes = dict(case.shape)
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    source = Source(experts="ep" in sizes, tie=case.tie)
    pipeline, deferred = _pipeline(case, source, mesh), 0
    replicas, at = _replicas(case, mesh)
    count, losses = pipeline.num_stages, []
    total = replicas * MICROBATCHES
    history, wanted = one_process(source, count, total, 1, train=False)
    twice = {f"{s}.{name}" for group in source.tied(count) for s, name in group[1:]}
    norm = sum(float(g.square().sum()) for n, g in wanted.items() if n not in twice) ** 0.5
    for step in range(STEPS):
        inputs, targets = source.batch(step, total)
        mine = slice(at * MICROBATCHES, (at + 1) * MICROBATCHES)
        with Counting() as counted, loss_parallel():
            pipeline.step(inputs[mine], target=targets[mine], losses=losses)
        if step == 0:
            pipeline.finish()
            deferred, peak = counted[0], pipeline.peak_memory
            gradients = _apart(pipeline, wanted, gradients=True)
            found, expected = pipeline.gather([float(x) for x in losses]), history[0][mine]
            assert sorted(x for row in found for x in row) == pytest.approx(sorted(expected))
            assert pipeline.grad_norm is not None
            norm = abs(pipeline.grad_norm - norm) / norm
    pipeline.finish()
    _, after = one_process(source, count, total, STEPS, train=True)
    outcome = Outcome(gradients, norm, _apart(pipeline, after), peak, deferred)
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
    data = [name for name in names if name not in ("pp", "tp")]
    data_mesh = None if not data else mesh[tuple(data)]
    group = (
        None
        if data_mesh is None
        else (data_mesh._flatten("data") if len(data) > 1 else data_mesh).get_group()
    )
    program = compile_schedule(
        plan,
        tied=[(0, stages - 1)] if case.tie else [],
        data_parallel=bool(data),
        post_validation=case.ahead,
    )
    experts = mesh["ep"].get_group() if "ep" in names else None

    def build(s: int) -> nn.Module:
        module = source.stage(s, stages, experts)
        if "tp" in names:
            cut(module, mesh["tp"], case.sequence)
        if case.sharded:
            over = mesh[case.sharded if len(case.sharded) > 1 else case.sharded[0]]
            fully_shard(module.get_submodule("block"), mesh=over)
            fully_shard(module, mesh=over)
        return module

    options: dict[str, Any] = {"clip_grad_norm": 1e9, "tied": source.tied(stages)}
    if experts is not None:
        options["norm_groups"] = {"*.experts.*": experts}
    return Pipeline(
        program,
        {s: partial(build, s) for s in range(stages)},
        loss=source.loss,
        optimizer=source.optimizer,
        group=mesh["pp"].get_group(),
        data_group=group,
        **options | dict(case.options),
    )


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
            wanted = expected[f"{s}.{name}"]
            assert found.shape == wanted.shape
            value = float((found - wanted).abs().max() / wanted.abs().max())
            worst = max(worst, value if value == value else float("inf"))
    return worst
