"""Stages of small models with what may go wrong in them, their batches and losses: what the runtime
and the plain loop have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import (
    all_gather_tensor_autograd,
    reduce_scatter_tensor_autograd,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from pipeloom import HuggingFace
from tests.support.one_rank import Of

from .cases import DEVICE, Case

WIDTH, WORDS, EXPERTS = 4, 7, 4
OVERFLOWS = 1  # the step in which a gradient may be infinite


def sometimes(m: Any, x: Tensor) -> Tensor:
    """Uses one of its parameters or the other, as its input says."""
    return x * (1 + (m.up if x.detach().flatten()[0] >= 0 else m.down))


class RunningMean(nn.Module):
    """Adds a buffer that each forward in training changes."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean().to(self.mean.dtype), 0.1)
        return x + self.mean.clone().to(x.dtype)


class LateMean(RunningMean):
    """Begins to change it at its third forward."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += self.training
        return super().forward(x) if self.seen > 2 else x


class Normed(nn.BatchNorm1d):
    """Over rows and length."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view(x.shape)


class Noise(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(x.shape, generator=self.generator).to(x)


class Stack(nn.Module):
    """A stack of matrices, whose products each have a share."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(EXPERTS, WIDTH, WIDTH))

    def forward(self, share: Tensor, x: Tensor) -> Tensor:
        weight = self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight
        return torch.einsum("rte,rtw,ewv->rtv", share, x, weight)


class Experts(nn.Module):
    """A stack of experts, of which each has a share in each token; over ``group`` each process has
    some of them."""

    group: ProcessGroup | None = None

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.stack = nn.Linear(WIDTH, EXPERTS, bias=False), Stack()

    def forward(self, x: Tensor) -> Tensor:
        share = self.gate(x).softmax(-1)
        if self.group is None:
            return x + self.stack(share, x)
        share, tokens = (all_gather_tensor_autograd(t, 0, self.group) for t in (share, x))
        share = share.chunk(self.group.size(), -1)[self.group.rank()]
        found = self.stack(share, tokens)
        return x + reduce_scatter_tensor_autograd(found, "sum", 0, self.group)

    def spread(self, mesh: DeviceMesh, *, as_dtensor: bool) -> None:
        """Keeps this process's part of the stack."""
        whole = self.stack.weight.detach()
        own: Tensor = whole.chunk(mesh.size())[mesh.get_local_rank()].clone()
        if as_dtensor:
            own = DTensor.from_local(own, mesh, [Shard(0)], run_check=False)
        self.stack.weight, self.group = nn.Parameter(own), mesh.get_group()


def twice(m: Any, x: Tensor) -> Tensor:
    """One product twice, the second time in an activation checkpoint."""
    x = m.product(x).sin()
    found: Tensor = checkpoint(m.product, x, use_reentrant=False)
    return found.tanh()


def slices(m: Any, x: Tensor) -> Tensor:
    """Products with parts of a parameter."""
    return x @ m.stack[:WIDTH].T + x @ m.stack[WIDTH:]


def table(m: Any, x: Tensor) -> Tensor:
    """A product of two parameters, which the next stage may be handed, too."""
    return x + m.product(m.rows).mean(0)


def row(m: Any, x: Tensor) -> Tensor:
    """A product with a vector, and a number that scales it."""
    return x + m.scale * functional.linear(x, m.row)[..., None]


class Phases(nn.Module):
    """A product with complex numbers, which keep their dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = nn.Parameter(torch.empty(WIDTH, WIDTH, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        return x + (x.to(self.turns.dtype) @ self.turns).imag.to(x.dtype)

    def _apply(self, fn: Any, recurse: bool = True) -> Phases:
        self.turns.data = self.turns.data.to(fn(self.turns.detach().real).device)
        return self


class Neighbours(nn.Conv1d):
    """A convolution over a sequence, in two groups of channels."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, 3, padding=1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x.transpose(1, 2)).transpose(1, 2)


class Positions(nn.Embedding):
    """Rows of a table by place, the first one of which gets no gradient."""

    def __init__(self) -> None:
        super().__init__(WORDS, WIDTH, padding_idx=0)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(torch.arange(x.shape[1], device=x.device))


class Attention(nn.MultiheadAttention):
    """Attention of a sequence to itself."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return x + super().forward(x, x, x, need_weights=False)[0]


class Frozen(nn.Linear):
    """Weights that are not trained."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).cos()


def in_place(m: Any, x: Tensor) -> Tensor:
    """Changes what it has made itself."""
    return (x * 2).add_(0.5).mul_(0.5)


MADE: dict[str, Callable[[], nn.Module]] = {
    "sometimes": partial(Of, sometimes, up=(WIDTH,), down=(WIDTH,)),
    "running mean": RunningMean,
    "late mean": LateMean,
    "batch norm": partial(Normed, WIDTH),
    "dropout": partial(nn.Dropout, 0.3),
    "generator": Noise,
    "experts": Experts,
    "twice": lambda: Of(twice, product=nn.Linear(WIDTH, WIDTH)),
    "weight norm": lambda: weight_norm(nn.Linear(WIDTH, WIDTH)),
    "slices": partial(Of, slices, stack=(2 * WIDTH, WIDTH)),
    "table": lambda: Of(table, rows=(2, WIDTH), product=nn.Linear(WIDTH, WIDTH)),
    "row": partial(Of, row, row=(WIDTH,), scale=()),
    "phases": Phases,
    "neighbours": Neighbours,
    "positions": Positions,
    "attention": partial(Attention, WIDTH, 2, batch_first=True),
    "frozen": Frozen,
    "in place": partial(Of, in_place),
}
EDGES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "plain": lambda x, came: (x,),
    "transposed": lambda x, came: (x.transpose(-1, -2),),
    "mask": lambda x, came: (x, (x.detach() > 0).long() + 1),
    "pair": lambda x, came: (x, x.sin()),
    "unused": lambda x, came: (x, x.sin()),
    "same": lambda x, came: (x, x),
    "as it came": lambda x, came: (x, came),
    "detached": lambda x, came: (x, x.detach().sin()),
    "number": lambda x, came: (x, x.mean()),
    "nothing": lambda x, came: (x, x[:0]),
    "expanded": lambda x, came: (x, x.mean(-1, keepdim=True).expand_as(x)),
    "parameter": lambda x, came: (x,),
}
"""What a stage hands on, of its result and what it was given."""


class Part(nn.Module):
    """One stage, as its case says."""

    def __init__(self, case: Case, stage: int) -> None:
        super().__init__()
        self.edges, self.in_model = case["edges"], case["loss"] == "model"
        self.first, self.last = stage == 0, stage == case.stages - 1
        self.starts = sum(start == stage for start, _ in case.skips)
        has = case.pieces(stage)
        if self.first and case["input"] == "tokens":
            self.embedding = nn.Embedding(WORDS, WIDTH)
        if self.last and case["tied"] == "second name":
            self.also = nn.Linear(WIDTH, WORDS, bias=False)
        if self.last:
            self.head = nn.Linear(WIDTH, WORDS, bias=False)
            self.head.weight = self.also.weight if hasattr(self, "also") else self.head.weight
        if "idle" in has:
            self.idle = nn.Parameter(torch.empty(WIDTH))
        self.pieces = nn.Sequential(*(make() for name, make in MADE.items() if name in has))
        if "empty" not in has:
            self.norm, self.product = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        generator = torch.Generator().manual_seed(100 + stage)
        for parameter in self.parameters():
            kind = parameter.dtype if parameter.is_complex() else None
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator, dtype=kind)
            parameter.requires_grad &= "all frozen" not in has
        if "hook" in has and hasattr(self, "product") and self.product.weight.requires_grad:
            self.product.weight.register_hook(partial(torch.mul, 0.5))  # type: ignore[no-untyped-call]

    def forward(
        self, x: Tensor, *more: Tensor, factor: Tensor | None = None, labels: Tensor | None = None
    ) -> Any:
        if not self.first:
            x = x.transpose(-1, -2).contiguous() if self.edges == "transposed" else x
            for each in more[self.edges == "unused" :]:
                x = x + ((each if each.numel() else each.sum()).to(x.dtype) * 0.1).sin()
        elif hasattr(self, "embedding"):
            x = self.embedding(x)
        came = x
        x = self.pieces(x if factor is None else x * factor)
        if hasattr(self, "product"):
            x = x + self.product(self.norm(x)).tanh()
        if self.last:
            x = self.head(x)
            return {"loss": mean_square(x, labels), "out": x} if self.in_model else x
        own = [self.norm.weight] if self.edges == "parameter" and hasattr(self, "norm") else []
        out = (*EDGES[self.edges](x, came), *own, *(x.cos() for _ in range(self.starts)))
        return out if len(out) > 1 else out[0]


def thaw(stage: nn.Module) -> list[nn.Parameter]:
    """Makes trained what was frozen: all of that, to be given to an optimizer."""
    frozen = [p for part in stage.modules() if isinstance(part, Frozen) for p in part.parameters()]
    for parameter in frozen:
        parameter.requires_grad = True
    return frozen


@cache
def source(kind: str, stages: int) -> HuggingFace:
    """A small model of Hugging Face that has as many layers."""
    from transformers import AutoConfig

    sizes = {"vocab_size": WORDS, "hidden_size": 2 * WIDTH, "num_hidden_layers": stages}
    more = {"intermediate_size": 3 * WIDTH, "num_attention_heads": 2, "num_key_value_heads": 2}
    more |= {"head_dim": WIDTH, "num_local_experts": EXPERTS, "max_position_embeddings": 8}
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    given = sizes | (ids if kind == "mamba" else more | no_dropout | ids)
    with TemporaryDirectory() as folder:
        AutoConfig.for_model(kind, **given).save_pretrained(folder)
        found = HuggingFace(folder, seq=4, experts="eager", recompute="none")
        found.check()
        found.skeleton, found.files  # noqa: B018 (is read)
    return found


def make_stage(case: Case, stage: int) -> nn.Module:
    """A stage whose weights depend on nothing else; the same numbers are drawn after it."""
    with torch.random.fork_rng():
        if case.hugging:
            made = source(case["model"], case.stages).stages(case.stages)[stage]
            return cast("nn.Module", made()).to(DEVICE, case.dtype)
        return Part(case, stage).to(DEVICE, case.dtype)


class InParts(SequenceParallel):
    """A norm of each process's part of a sequence that all have."""

    @staticmethod
    def _prepare_input_fn(layout: Any, mod: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        whole = DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=layout)


def parallel(module: nn.Module, mesh: DeviceMesh, *, sequence: bool = False) -> nn.Module:
    """Tensor parallel, with whole tensors between stages; with ``sequence`` norms are of parts."""
    columns = partial(ColwiseParallel, output_layouts=Replicate())
    rows = partial(RowwiseParallel, input_layouts=Replicate())
    styles: dict[str, Callable[[], ParallelStyle]] = {
        **dict.fromkeys(("product", "head", "lm_head"), columns),
        **dict.fromkeys(("embedding", "embed_tokens", "embeddings", "wte"), rows),
        **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ColwiseParallel),
        **dict.fromkeys(("o_proj", "down_proj"), RowwiseParallel),
    }
    if sequence:
        styles |= {"norm": InParts, "product": partial(columns, input_layouts=Shard(1))}
    leaves = {name: name.rpartition(".")[2] for name, _ in module.named_modules()}
    return parallelize_module(
        module, mesh, {name: styles[leaf]() for name, leaf in leaves.items() if leaf in styles}
    )


def compiled(module: nn.Module, how: str) -> nn.Module:
    """Under ``torch.compile``: by itself, in place, or its parts."""
    backend = "inductor" if how == "inductor" else "aot_eager"
    torch._inductor.config.fallback_random = True  # dropout's numbers are torch's
    if how in ("whole", "inductor"):
        return cast("nn.Module", torch.compile(module, backend=backend))
    for part in [module] if how == "in place" else module.children():
        part.compile(backend=backend)
    return module


def mean_square(output: Any, target: Any) -> Tensor:
    """The loss of one microbatch; of tokens the next one's cross entropy."""
    if not target.is_floating_point():
        return functional.cross_entropy(output[:, :-1].flatten(0, 1), target[:, 1:].flatten())
    return functional.mse_loss(output, target.to(output.dtype))


def with_metrics(output: Tensor, target: Tensor, *, weight: float = 1.0) -> tuple[Tensor, Any]:
    """The same, weighed, and a tensor that still has its graph."""
    return weight * mean_square(output, target), {"largest": output.max()}


def optimizer(case: Case, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer; epsilon is large, as noise of rounding would be a whole step else."""
    lr = 0.03 if case["scale_grads"] else 0.002
    # on a GPU torch steps lists of tensors, which cannot hold DTensors and others
    more: dict[str, Any] = {} if case.width == 1 and not case.spread else {"foreach": False}
    match case["optimizer"]:
        case "momentum":
            return torch.optim.SGD(parameters, lr=lr, momentum=0.9, **more)
        case "adamw":
            # fully_shard gives what nothing uses a gradient of zeros, by which it would decay
            decay = 0.0 if case.sharded else 0.5
            return torch.optim.AdamW(parameters, lr=0.03, weight_decay=decay, eps=1e-3, **more)
        case "adam":
            return torch.optim.Adam(parameters, lr=0.03, amsgrad=True, eps=1e-3, **more)
    return torch.optim.SGD(parameters, lr=lr, **more)


def batch(case: Case, step: int, count: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Inputs, targets and factors of the step's microbatches, of all replicas'."""
    found: tuple[list[Tensor], list[Tensor], list[Tensor]] = [], [], []
    for j in range(count):
        rows, length = case.shape(step, j)
        generator = torch.Generator().manual_seed(1000 * step + j)
        draw = partial(torch.randn, generator=generator, dtype=case.dtype)
        x = draw(rows, length, WIDTH)
        if case["input"] == "tokens" or case.hugging:
            x = torch.randint(WORDS, (rows, length), generator=generator)
        y = x if case.hugging else draw(rows, length, WORDS)
        if case.overflows and (step, j) == (OVERFLOWS, 1):
            y = y * 1e200
        for row, value in zip(found, (x, y, draw(rows, 1, 1)), strict=True):
            row.append(value.to(DEVICE))
    return found
