"""A byte-level GPT that can be cut into any number of pipeline stages.

It has pre-norm blocks of causal attention and a GELU MLP, learned positions and 256 symbols; with
the default sizes, about ten million parameters. Its units are the embedding, the blocks and the
head; a stage is a sequence of units. The initial weights of a unit depend only on the seed and on
the index of the unit in the model, and hence not on the cut.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from pipeloom import InputError, Layer, LayerKind

from . import data

SYMBOLS = 256
T = TypeVar("T", bound=nn.Module)


@dataclass(frozen=True)
class GPT:
    """A model source: it provides stages, loss, batches and optimizer.

    ``cuts``: the number of blocks in each stage, or None to distribute them as evenly as possible.
    ``tie_weights``: whether embedding and head share one matrix. ``microbatch``: sequences per
    microbatch, of ``context`` bytes each.
    """

    layers: int = 8
    width: int = 320
    heads: int = 5
    context: int = 64
    microbatch: int = 2
    cuts: tuple[int, ...] | None = None
    tie_weights: bool = False
    dtype: torch.dtype = torch.float32
    seed: int = 0
    learning_rate: float = 1e-3

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        """One function per stage that builds the module of that stage.

        Raises InputError if the model cannot be cut into ``count`` stages.
        """
        ends = [0, *accumulate(self.blocks_per_stage(count))]
        return [functools.partial(self._stage, first, stop) for first, stop in pairwise(ends)]

    def blocks_per_stage(self, count: int) -> tuple[int, ...]:
        """The number of blocks in each of ``count`` stages.

        Raises InputError if there are fewer blocks than stages, or if ``cuts`` does not fit.
        """
        if self.cuts is not None:
            if len(self.cuts) != count or sum(self.cuts) != self.layers or min(self.cuts) < 1:
                raise InputError(
                    f"cuts: expected {count} stages of at least one block, {self.layers} blocks in "
                    f"all, got {self.cuts}"
                )
            return self.cuts
        if not 1 <= count <= self.layers:
            raise InputError(f"stages: expected 1 to {self.layers} (the blocks), got {count}")
        even, rest = divmod(self.layers, count)
        # the last stage also has the head, so the first stages get the additional blocks
        return tuple(even + (s < rest) for s in range(count))

    def named_layers(self) -> Sequence[tuple[Layer, Callable[[], nn.Module]]]:
        """The layers between which the model can be cut (embedding, blocks and head), each with a
        function that builds its module.

        The time of the head includes the loss.
        """
        blocks = [f"blocks.{i}" for i in range(self.layers)]
        kinds = [LayerKind.EMBEDDING, *(LayerKind.BLOCK for _ in blocks), LayerKind.HEAD]
        return [
            (Layer(name, kind, (name,)), functools.partial(self._unit_at, place))
            for place, (name, kind) in enumerate(
                zip(["embedding", *blocks, "head"], kinds, strict=True)
            )
        ]

    def names(self, count: int) -> Callable[[int, str], str]:
        """A function that maps a stage and the name of a parameter in it to that parameter's name
        in the whole model.

        ``count``: the number of stages.
        """
        layers = [layer.name for layer, _ in self.named_layers()]
        ends = [0, *accumulate(self.blocks_per_stage(count))]
        first = [end + (s > 0) for s, end in enumerate(ends)]

        def name_of(stage: int, name: str) -> str:
            at, _, rest = name.partition(".")
            return f"{layers[first[stage] + int(at)]}.{rest}"

        return name_of

    def _stage(self, first: int, stop: int) -> nn.Module:
        """The module of a stage: the blocks from ``first`` to before ``stop``, and the embedding or
        the head if the stage is at that end of the model."""
        begin = 0 if first == 0 else first + 1
        end = self.layers + 2 if stop == self.layers else stop + 1
        units = [self._unit_at(place) for place in range(begin, end)]
        embedding, head = units[0], units[-1]
        if self.tie_weights and isinstance(embedding, Embedding) and isinstance(head, Head):
            head.symbols.weight = embedding.symbols.weight
        return nn.Sequential(*units)

    def tied_layers(self) -> Sequence[Sequence[tuple[str, str]]]:
        """The groups of parameters that several layers share, each parameter as (layer, name)."""
        shared = (("embedding", "symbols.weight"), ("head", "symbols.weight"))
        return (shared,) if self.tie_weights else ()

    def _unit_at(self, place: int) -> nn.Module:
        """The unit with the index ``place``: 0 is the embedding, then come the blocks, then the
        head."""
        if place == 0:
            return self._unit(0, lambda: Embedding(self.width, self.context))
        if place <= self.layers:
            return self._unit(place, lambda: Block(self.width, self.heads))
        head = self._unit(place, lambda: Head(self.width))
        if self.tie_weights:  # the same initial values as the embedding, on any rank
            embedding = self._unit(0, lambda: Embedding(self.width, self.context))
            head.symbols.weight.data.copy_(embedding.symbols.weight.data)
        return head

    def _unit(self, place: int, build: Callable[[], T]) -> T:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed((self.seed << 16) + place)
            unit = build()
            unit.apply(_initialize)
            return unit.to(self.dtype)

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        """The groups of parameters that several of ``count`` stages share, each parameter as
        (stage, name).

        Parameters shared within one stage are not listed.
        """
        if not self.tie_weights or count == 1:
            return ()
        head = self.blocks_per_stage(count)[-1]
        return (((0, "0.symbols.weight"), (count - 1, f"{head}.symbols.weight")),)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean cross entropy of the next byte, in nats. ``output``: (B, T, 256); ``target``:
        (B, T)."""
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The inputs and the targets of training step ``step``: one tensor of shape (B, T) per
        microbatch."""
        drawn = data.windows(step, microbatches * self.microbatch, self.context + 1, self.seed)
        inputs, targets = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
        return torch.split(inputs, self.microbatch), torch.split(targets, self.microbatch)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.learning_rate, betas=(0.9, 0.95))


class Embedding(nn.Module):
    """Sums symbol and position embeddings: from bytes (B, T) to vectors (B, T, width)."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.positions = nn.Embedding(context, width)

    def forward(self, symbols: Tensor) -> Tensor:
        positions = torch.arange(symbols.shape[1], device=symbols.device)
        out: Tensor = self.symbols(symbols) + self.positions(positions)
        return out


class Block(nn.Module):
    """Pre-norm residual block: attention, then an MLP of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise InputError(f"heads: expected a divisor of the width {width}, got {heads}")
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attention(self.norm_attention(x))
        out: Tensor = x + self.narrow(F.gelu(self.widen(self.norm_mlp(x))))
        return out

    def _attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (B, heads, T, width / heads)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.mix(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Head(nn.Module):
    """A norm and a linear layer, from vectors (B, T, width) to logits (B, T, 256)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.symbols = nn.Linear(width, SYMBOLS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.symbols(self.norm(x))
        return out


def _initialize(module: nn.Module) -> None:
    """Normal weights with standard deviation 0.02 and zero biases, as in GPT-2."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def small() -> GPT:
    """A GPT for tests, with four narrow blocks and short sequences."""
    return GPT(layers=4, width=32, heads=2, context=16)
