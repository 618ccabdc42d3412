"""A small transformer, cut into stages, for the tests of the runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeloom.ir import Program
from pipeloom.runtime import ModelSource, Pipeline
from tests.support.hub import own

VOCABULARY, WIDTH, LENGTH = 17, 16, 6


class Block(nn.Module):
    """Causal attention and a gated feed-forward layer, both with residuals."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        added: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return added


class First(nn.Module):
    """Token and position embedding, then blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH) for _ in range(blocks)))

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.blocks(self.embedding(tokens) + self.positions)
        return out


class Last(nn.Module):
    """Blocks, a norm, and the head, whose weight is the embedding's."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(WIDTH) for _ in range(blocks)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.blocks(x)))
        return out


@dataclass(frozen=True)
class TinyTransformer:
    """A model source: one block per stage, each with its own weights, and tied embedding and head.

    If ``uneven``, stages with odd numbers have two blocks.
    """

    dtype: torch.dtype = torch.float64
    rows: int = 2
    rate: float = 0.1
    uneven: bool = False

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        return [partial(self._stage, s, count) for s in range(count)]

    def _stage(self, stage: int, count: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(100 + stage)
            blocks = 2 if self.uneven and stage % 2 else 1
            module: nn.Module
            if stage == 0:
                module = First(blocks)
            elif stage == count - 1:
                module = Last(blocks)
            else:
                module = Block(WIDTH) if blocks == 1 else nn.Sequential(Block(WIDTH), Block(WIDTH))
        return module.to(self.dtype)

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return [[(0, "embedding.weight"), (count - 1, "head.weight")]]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output.flatten(0, 1), target.flatten())

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        generator = torch.Generator().manual_seed(step)
        shape = (microbatches, self.rows, LENGTH + 1)
        tokens = torch.randint(0, VOCABULARY, shape, generator=generator)
        return list(tokens[..., :-1]), list(tokens[..., 1:])

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.rate, momentum=0.9)


class Untied(TinyTransformer):
    """Embedding and head with separate weights."""

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return []


@dataclass(frozen=True)
class Squares:
    """A model source whose stages are made by :meth:`stage`; the loss is the mean of squares."""

    dtype: torch.dtype = torch.float32
    shape: ClassVar[tuple[int, ...]] = ()

    def stage(self, number: int) -> nn.Module:
        raise NotImplementedError

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        return [partial(self.stage, s) for s in range(count)]

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return ()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).pow(2).mean()

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        generator = torch.Generator().manual_seed(step)
        size = (2, microbatches, *self.shape)
        inputs, targets = torch.randn(size, generator=generator, dtype=self.dtype)
        return list(inputs), list(targets)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def whole(source: ModelSource, stages: int) -> nn.Sequential:
    """The model in one process; tied parameters are one object."""
    given = source.stages(stages)
    modules = [stage if isinstance(stage, nn.Module) else stage() for stage in given]
    for (s, name), *others in source.tied(stages):
        shared = modules[s].get_parameter(name)
        for other, path in others:
            owner, _, leaf = path.rpartition(".")
            setattr(modules[other].get_submodule(owner), leaf, shared)
    return nn.Sequential(*modules)


def reference(
    source: ModelSource, stages: int, microbatches: int, steps: int = 1, train: bool = False
) -> tuple[list[list[float]], dict[str, Tensor]]:
    """One process with plain autograd: each step's losses, and the last step's gradients.

    Gradients are named ``stage.parameter``. With ``train``, an optimizer step follows each step,
    and parameters are returned instead.
    """
    model = whole(source, stages)
    optimizer = source.optimizer(model.parameters()) if train else None
    history = []
    for step in range(steps):
        model.zero_grad()
        losses = [
            source.loss(model(x), y) for x, y in zip(*source.batch(step, microbatches), strict=True)
        ]
        for loss in losses:
            (loss / microbatches).backward()
        history.append([loss.item() for loss in losses])
        if optimizer is not None:
            optimizer.step()
    named = model.named_parameters(remove_duplicate=False)
    result = {name: p.detach() if train else p.grad for name, p in named}
    return history, {name: tensor for name, tensor in result.items() if tensor is not None}


def mean_losses(source: ModelSource, stages: int, microbatches: int, steps: int) -> list[float]:
    """One process's mean loss of each training step."""
    history, _ = reference(source, stages, microbatches, steps=steps, train=True)
    return [sum(losses) / len(losses) for losses in history]


def stepped(pipeline: Pipeline, source: ModelSource, step: int = 0, **given: Any) -> list[float]:
    """A step with the source's batch ``step``; returns its losses on the last stage's rank."""
    inputs, targets = source.batch(step, pipeline.microbatches)
    losses: list[Tensor] = []
    pipeline.step(inputs, target=targets, losses=losses, **given)
    return [loss.item() for loss in losses]


def trained(program: Program, source: ModelSource, steps: int = 1, **options: Any) -> Pipeline:
    """This rank's pipeline, closed after this number of steps."""
    pipeline = Pipeline.from_source(program, source, **{"transport": own()} | options)
    for step in range(steps):
        stepped(pipeline, source, step)
    pipeline.close()
    return pipeline


def gradient(parameter: Tensor) -> Tensor | None:
    return parameter.grad


def named(
    modules: Mapping[int, nn.Module], read: Callable[[Tensor], Tensor | None] = Tensor.detach
) -> dict[str, Tensor]:
    """``read`` of each trained parameter of the stages, as ``stage.parameter``."""
    found = {}
    for s, module in modules.items():
        for name, parameter in module.named_parameters():
            value = read(parameter)
            assert value is not None or not parameter.requires_grad, f"{s}.{name}"
            if value is not None:
                found[f"{s}.{name}"] = value
    return found


def full(value: Tensor) -> Tensor:
    """The whole tensor of a possible shard; importing DTensor takes seconds."""
    whole: Callable[[], Tensor] | None = getattr(value, "full_tensor", None)
    return value if whole is None else whole()


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    value = float((found - expected).abs().max() / expected.abs().max())
    return math.inf if math.isnan(value) else value  # max() ignores NaN


def worst(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest :func:`difference` of all tensors."""
    return max(difference(value, expected[name]) for name, value in found.items())
