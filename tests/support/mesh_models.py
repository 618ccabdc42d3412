"""A small transformer whose stages are cut over tensor or expert parallel processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

from tests.support.models import TinyTransformer

VOCABULARY, WIDTH, HEAD, EXPERTS = 18, 8, 2, 4  # the source has 17 tokens, all is cut in two


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
        parts = zip(self.experts.values(), tokens.split(counts.tolist()), strict=True)
        return torch.cat([functional.linear(x, _own(e.weight), _own(e.bias)) for e, x in parts])


def _own(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def as_dtensors(experts: nn.Module, mesh: DeviceMesh) -> None:
    """Makes each parameter one of all processes' together, of which each has its own."""
    for module in experts.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            whole = DTensor.from_local(parameter.detach(), mesh, [Shard(0)], run_check=False)
            setattr(module, name, nn.Parameter(whole))


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
class Source(TinyTransformer):
    """The model as one process has it."""

    experts: bool = False
    tie: bool = True
    clip: float = 1e9

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        return [partial(self.stage, s, count) for s in range(count)]

    def stage(self, s: int, count: int, group: dist.ProcessGroup | None = None) -> nn.Module:
        return stage(s, count, group, self.experts).to(self.dtype)

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return super().tied(count) if self.tie else []

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return super().loss(output.to(self.dtype), target)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """One process's, which clips."""
        return Clipping(self.clip, parameters, lr=0.1, momentum=0.9)


class Clipping(torch.optim.SGD):
    """Steps by clipped gradients."""

    def __init__(self, clip: float, parameters: Iterable[nn.Parameter], **options: float) -> None:
        super().__init__(parameters, **options)  # type: ignore[arg-type]
        self.clip = clip

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], self.clip)
        super().step(closure)
