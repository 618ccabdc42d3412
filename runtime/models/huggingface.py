"""A Hugging Face model as a model source, from its folder or its ``config.json`` alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.layers import Layer, LayerKind

from ..pipeline.layered_source import LayeredSource
from ..rank.options import ModelNames
from ..stages.store import Stage
from . import weights
from .architectures import read_skeleton
from .parts import Block, Embedding, Head, Part
from .skeleton import Skeleton
from .tokens import Tokens

LENGTH = 128
EVALUATION = 1 << 32  # what its seed is ahead of training's
CONFIG, TOKENIZER = "config.json", "tokenizer.json"


@dataclass(frozen=True)
class HuggingFace:
    """A causal language model of ``transformers`` that can be cut between its layers.

    ``path``: its folder (``config.json``, and weights in safetensors or none), or a
    ``config.json``. Without weights they are drawn by ``seed``, alike wherever a layer is made.
    ``seq``: tokens of a sequence, 128 or as many as the model has positions; ``micro_batch``:
    sequences of a microbatch. ``data``, ``eval_data``: files of tokens (:class:`Tokens`); None:
    random ones.
    ``lr``: AdamW's. ``attention``, ``experts``: implementations of these, such as ``eager``; the
    library's choice by default. ``recompute``: ``full`` where each decoder layer keeps its input
    alone, and is computed again in its backward. Raises InputError for what cannot be cut, or a
    wrong setting.
    """

    path: str
    seq: int | None = None
    micro_batch: int = 1
    data: str | None = None
    eval_data: str | None = None
    seed: int = 0
    lr: float = 1e-4
    attention: str | None = None
    experts: str | None = None
    recompute: str = "none"

    def __post_init__(self) -> None:
        for key, least in (("seq", 2), ("micro_batch", 1), ("seed", 0)):
            value = getattr(self, key)
            if value is not None and value < least:
                raise InputError(f"{self.name}: {key}: expected at least {least}, got {value}")
        if not self.lr > 0:
            raise InputError(f"{self.name}: lr: expected more than 0, got {self.lr}")
        if self.recompute not in ("none", "full"):
            raise InputError(f"{self.name}: recompute: expected none or full, got {self.recompute}")

    def __getstate__(self) -> dict[str, Any]:
        """The settings: other processes read the model themselves."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def check(self) -> None:
        """Raises InputError where the model, its files or the settings do not fit."""
        self.length, self.files  # noqa: B018
        self.batch(0, 1)
        if self.eval_data is not None:
            self.eval_batch(0, 1)

    @property
    def name(self) -> str:
        """The model's name in faults."""
        return f"hf:{self.path}"

    @cached_property
    def skeleton(self) -> Skeleton:
        """The model without its weights. Raises InputError where it cannot be cut."""
        kernels = {"attn_implementation": self.attention, "experts_implementation": self.experts}
        asked = {key: value for key, value in kernels.items() if value is not None}
        return read_skeleton(self._config, self.name, asked)

    @cached_property
    def files(self) -> list[Path]:
        """The model's files of weights; none where they are drawn."""
        config = self._config
        alone = config == Path(self.path).expanduser()
        return [] if alone else weights.files_of(config.parent, self.name)

    @property
    def _config(self) -> Path:
        path = Path(self.path).expanduser()
        config = path / CONFIG if path.is_dir() else path
        if not config.is_file():
            raise InputError(
                f"{self.name}: expected a folder with a {CONFIG}, or such a file; hf download "
                "--local-dir makes one of a model of the Hub"
            )
        return config

    @cached_property
    def _tokens(self) -> tuple[Tokens, Tokens]:
        """The tokens to train on, and the tokens of evaluations."""
        tokenizer = self._config.parent / TOKENIZER
        vocabulary = self.skeleton.model.config.vocab_size
        return (
            Tokens(self.data, vocabulary, self.seed, tokenizer),
            Tokens(self.eval_data, vocabulary, self.seed + EVALUATION, tokenizer),
        )

    @cached_property
    def length(self) -> int:
        """Tokens of a sequence. Raises InputError where the model has fewer positions."""
        most: int | None = getattr(self.skeleton.model.config, "max_position_embeddings", None)
        if self.seq is not None and most is not None and self.seq > most:
            raise InputError(
                f"{self.name}: seq: expected at most {most}, the model's max_position_embeddings, "
                f"got {self.seq}"
            )
        return self.seq or min(LENGTH, most or LENGTH)

    def named_layers(self) -> Sequence[tuple[Layer, Callable[[], nn.Module]]]:
        """The layers that the model is cut between: the part before its decoder layers, these, and
        the rest."""
        found, block = self.skeleton, partial(Block, again=self.recompute == "full")
        parts: list[tuple[Layer, Callable[..., Part]]] = [
            (Layer("embedding", LayerKind.EMBEDDING, found.before), Embedding),
            *((Layer(name, LayerKind.BLOCK, (name,)), block) for name in found.blocks),
            (Layer("head", LayerKind.HEAD, found.after), Head),
        ]
        return [
            (layer, partial(self._layer, make, layer.modules, place))
            for place, (layer, make) in enumerate(parts)
        ]

    def _layer(self, make: Callable[..., Part], units: Sequence[str], place: int) -> Part:
        """The module of these units, with its weights. Its model has these alone, and those whose
        weights they share."""
        found = self.skeleton
        tied = {
            unit
            for group in found.ties
            if any(_within(name, units) for name in group)
            for unit in (*found.before, *found.after)
            if any(_within(name, [unit]) for name in group)
        }
        part = found.part([*units, *tied])
        if torch.get_default_device().type != "meta":
            if self.files:
                weights.load(part, self.files, self.name)
            weights.draw(part, (self.seed << 16) + place)
        return make(part, found, units)

    def tied_layers(self) -> Sequence[Sequence[tuple[str, str]]]:
        """The parameters that several layers share: embedding and head, of many models."""
        layers = [layer for layer, _ in self.named_layers()]
        return tuple(
            tuple(
                (next(x.name for x in layers if _within(name, x.modules)), name) for name in group
            )
            for group in self.skeleton.ties
        )

    def layer_names(self) -> Callable[[Layer, str], str]:
        """A function that names a layer's parameter: by its own name, which is also the model's."""
        return lambda layer, name: name

    def names(self, count: int) -> ModelNames:
        """The names that parameters of so many stages have in the model."""
        return self._even(count).names(count)

    def _even(self, count: int) -> LayeredSource:
        """The model cut nearly evenly; the last stage also has the head, so the larger ones come
        first."""
        blocks = self.skeleton.blocks
        if not 1 <= count <= len(blocks):
            raise InputError(
                f"{self.name}: stages: expected 1 to {len(blocks)}, its decoder layers, got {count}"
            )
        even, rest = divmod(len(blocks), count)
        ends = [s * even + min(s, rest) for s in range(count + 1)]
        parts = [blocks[a:b] for a, b in pairwise(ends)]
        parts[0] = ("embedding", *parts[0])
        parts[-1] = (*parts[-1], "head")
        return LayeredSource(self, tuple(parts))

    def stages(self, count: int) -> Sequence[Stage]:
        """The functions that make each stage. Raises InputError where there are more than decoder
        layers."""
        return self._even(count).stages(count)

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        """The parameters that several of these stages share."""
        return self._even(count).tied(count)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss that the model itself computes for logits (B, T, V) and labels (B, T), which it
        shifts: the next token's mean cross entropy."""
        model = self.skeleton.model
        vocabulary = model.config.vocab_size
        loss: Tensor = model.loss_function(logits=output, labels=target, vocab_size=vocabulary)
        return loss

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Tokens (B, T) of one step, one tensor a microbatch; they are the labels, too."""
        return self._microbatches(self._tokens[0], step, microbatches)

    def eval_batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The same ones after any step. Raises InputError without ``eval_data`` beside ``data``."""
        if self.data is not None and self.eval_data is None:
            raise InputError(f"{self.name}: eval_data: missing; expected a file, as data is one")
        return self._microbatches(self._tokens[1], 0, microbatches)

    def _microbatches(
        self, tokens: Tokens, step: int, count: int
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        drawn = tokens.windows(step, count * self.micro_batch, self.length)
        parts = torch.split(drawn, self.micro_batch)
        return parts, parts

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW, without weight decay."""
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=0.0)


def _within(name: str, modules: Sequence[str]) -> bool:
    """Whether a parameter of this name is in any of the modules."""
    return any(name.startswith(f"{module}.") for module in modules)
