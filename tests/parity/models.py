"""Small models with error-prone parts, their batches and losses.

The runtime and the plain loop share them.
"""

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
OVERFLOWS = 1  # the step in which a gradient may overflow


def sometimes(m: Any, x: Tensor) -> Tensor:
    """Uses one or the other of two parameters, depending on the input."""
    return x * (1 + (m.up if x.detach().flatten()[0] >= 0 else m.down))


class RunningMean(nn.Module):
    """Adds a buffer that is updated in each training forward."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean().to(self.mean.dtype), 0.1)
        return x + self.mean.clone().to(x.dtype)


class LateMean(RunningMean):
    """Updates the buffer only from the third forward on."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += self.training
        return super().forward(x) if self.seen > 2 else x


class Normed(nn.BatchNorm1d):
    """Batch norm over rows and length."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view(x.shape)


class Noise(nn.Module):
    """Multiplies by random numbers from its own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(x.shape, generator=self.generator).to(x)


class Stack(nn.Module):
    """A stack of matrices; the result is the weighted sum of all products."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(EXPERTS, WIDTH, WIDTH))

    def forward(self, share: Tensor, x: Tensor) -> Tensor:
        weight = self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight
        return torch.einsum("rte,rtw,ewv->rtv", share, x, weight)


class Experts(nn.Module):
    """A mixture of experts with dense routing; over ``group``, each process holds some experts."""

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

    def spread(self, mesh: DeviceMesh) -> None:
        """Keep only this process's part of the stack."""
        whole = self.stack.weight.detach()
        own: Tensor = whole.chunk(mesh.size())[mesh.get_local_rank()].clone()
        own = DTensor.from_local(own, mesh, [Shard(0)], run_check=False)
        self.stack.weight, self.group = nn.Parameter(own), mesh.get_group()


def twice(m: Any, x: Tensor) -> Tensor:
    """Uses one product twice, the second time in an activation checkpoint."""
    x = m.product(x).sin()
    found: Tensor = checkpoint(m.product, x, use_reentrant=False)
    return found.tanh()


def slices(m: Any, x: Tensor) -> Tensor:
    """Products with slices of a parameter."""
    return x @ m.stack[:WIDTH].T + x @ m.stack[WIDTH:]


def table(m: Any, x: Tensor) -> Tensor:
    """A product of two parameters, which does not depend on the input."""
    return x + m.product(m.rows).mean(0)


def row(m: Any, x: Tensor) -> Tensor:
    """A product with a vector, scaled by a scalar parameter."""
    return x + m.scale * functional.linear(x, m.row)[..., None]


class Neighbours(nn.Conv1d):
    """A convolution over the sequence, with two groups of channels."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, 3, padding=1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x.transpose(1, 2)).transpose(1, 2)


class Positions(nn.Embedding):
    """Position embeddings; the first one gets no gradient."""

    def __init__(self) -> None:
        super().__init__(WORDS, WIDTH, padding_idx=0)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(torch.arange(x.shape[1], device=x.device))


class Attention(nn.MultiheadAttention):
    """Self-attention."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return x + super().forward(x, x, x, need_weights=False)[0]


class Frozen(nn.Linear):
    """A linear layer that is not trained."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).cos()


def in_place(m: Any, x: Tensor) -> Tensor:
    """Modifies its own intermediate result in place."""
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
"""The outputs of a stage, from its result ``x`` and its input ``came``."""


class Part(nn.Module):
    """One stage of a case."""

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
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
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
    """Make the frozen parameters of a stage trainable, and return them."""
    frozen = [p for part in stage.modules() if isinstance(part, Frozen) for p in part.parameters()]
    for parameter in frozen:
        parameter.requires_grad = True
    return frozen


@cache
def source(kind: str, stages: int) -> HuggingFace:
    """A small Hugging Face model with one layer per stage."""
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
    """A stage with reproducible weights; the state of the random generator stays unchanged."""
    with torch.random.fork_rng():
        if case.hugging:
            made = source(case["model"], case.stages).stages(case.stages)[stage]
            return cast("nn.Module", made()).to(DEVICE, case.dtype)
        return Part(case, stage).to(DEVICE, case.dtype)


class InParts(SequenceParallel):
    """A sequence parallel norm whose input is the whole sequence."""

    @staticmethod
    def _prepare_input_fn(layout: Any, mod: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        whole = DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False)
        return whole.redistribute(placements=layout)


def parallel(module: nn.Module, mesh: DeviceMesh, *, sequence: bool = False) -> nn.Module:
    """A tensor parallel module with whole tensors between stages.

    With ``sequence``, its norms are sequence parallel.
    """
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
    """Apply ``torch.compile`` to the module as a whole, in place, or to its children."""
    backend = "inductor" if how == "inductor" else "aot_eager"
    torch._inductor.config.fallback_random = True  # the same dropout masks as without compiling
    if how in ("whole", "inductor"):
        return cast("nn.Module", torch.compile(module, backend=backend))
    for part in [module] if how == "in place" else module.children():
        part.compile(backend=backend)
    return module


def mean_square(output: Any, target: Any) -> Tensor:
    """The loss of a microbatch: mean squared error, or cross entropy of the next token."""
    if not target.is_floating_point():
        return functional.cross_entropy(output[:, :-1].flatten(0, 1), target[:, 1:].flatten())
    return functional.mse_loss(output, target.to(output.dtype))


def weighted(output: Tensor, target: Tensor, *, weight: float = 1.0) -> Tensor:
    """The weighted loss."""
    return weight * mean_square(output, target)


def optimizer(case: Case, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a case. A large epsilon keeps rounding errors from becoming whole steps."""
    lr = 0.03 if case["scale_grads"] else 0.002
    # on a GPU, torch uses foreach by default, which cannot mix DTensors with other tensors
    more: dict[str, Any] = {} if case.width == 1 and not case.spread else {"foreach": False}
    match case["optimizer"]:
        case "momentum":
            return torch.optim.SGD(parameters, lr=lr, momentum=0.9, **more)
        case "adamw":
            # fully_shard gives unused parameters a gradient of zeros, so that they would decay
            decay = 0.0 if case.sharded else 0.5
            return torch.optim.AdamW(parameters, lr=0.03, weight_decay=decay, eps=1e-3, **more)
        case "adam":
            return torch.optim.Adam(parameters, lr=0.03, amsgrad=True, eps=1e-3, **more)
    return torch.optim.SGD(parameters, lr=lr, **more)


def batch(case: Case, step: int, count: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Inputs, targets and factors of all microbatches of a step, for all replicas."""
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
