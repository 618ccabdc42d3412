"""A Hugging Face model as a model source, from its folder or only its ``config.json``."""

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
EVALUATION = 1 << 32  # offset from the seed of training to that of evaluation
CONFIG, TOKENIZER = "config.json", "tokenizer.json"


@dataclass(frozen=True)
class HuggingFace:
    """A causal language model of ``transformers``, which can be cut between its layers.

    ``path``: its folder (``config.json`` and optionally weights in safetensors), or a
    ``config.json``. Without weights, they are initialized from ``seed``, identically in every
    process. ``seq``: tokens per sequence; by default 128 or the model's positions, if fewer.
    ``micro_batch``: sequences per microbatch. ``data``, ``eval_data``: files of tokens
    (:class:`Tokens`); None: random tokens. ``lr``: learning rate of AdamW. ``attention``,
    ``experts``: implementations, such as ``eager``; by default the library's choice.
    ``recompute``: with ``full``, each decoder layer saves only its input and is recomputed in its
    backward. Raises InputError for models that cannot be cut and for invalid settings.
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
        """Returns only the settings: other processes read the model themselves."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def check(self) -> None:
        """Raises InputError if the model, its files or the settings are inconsistent."""
        self.length, self.files  # noqa: B018
        self.batch(0, 1)
        if self.eval_data is not None:
            self.eval_batch(0, 1)

    @property
    def name(self) -> str:
        """The model's name in error messages."""
        return f"hf:{self.path}"

    @cached_property
    def skeleton(self) -> Skeleton:
        """The model without its weights. Raises InputError if it cannot be cut."""
        kernels = {"attn_implementation": self.attention, "experts_implementation": self.experts}
        asked = {key: value for key, value in kernels.items() if value is not None}
        return read_skeleton(self._config, self.name, asked)

    @cached_property
    def files(self) -> list[Path]:
        """The model's files of weights; empty if weights are initialized randomly."""
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
        """The tokens for training and those for evaluation."""
        tokenizer = self._config.parent / TOKENIZER
        vocabulary = self.skeleton.model.config.vocab_size
        return (
            Tokens(self.data, vocabulary, self.seed, tokenizer),
            Tokens(self.eval_data, vocabulary, self.seed + EVALUATION, tokenizer),
        )

    @cached_property
    def length(self) -> int:
        """Tokens per sequence. Raises InputError if the model has fewer positions."""
        most: int | None = getattr(self.skeleton.model.config, "max_position_embeddings", None)
        if self.seq is not None and most is not None and self.seq > most:
            raise InputError(
                f"{self.name}: seq: expected at most {most}, the model's max_position_embeddings, "
                f"got {self.seq}"
            )
        return self.seq or min(LENGTH, most or LENGTH)

    def named_layers(self) -> Sequence[tuple[Layer, Callable[[], nn.Module]]]:
        """Returns the layers between which the model can be cut.

        These are the part before the decoder layers, each decoder layer, and the part after them.
        """
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
        """Returns the module of ``units`` with its weights.

        The underlying model contains only these units and those that share weights with them.
        """
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
        """Returns the parameters that several layers share, such as embedding and head."""
        layers = [layer for layer, _ in self.named_layers()]
        return tuple(
            tuple(
                (next(x.name for x in layers if _within(name, x.modules)), name) for name in group
            )
            for group in self.skeleton.ties
        )

    def layer_names(self) -> Callable[[Layer, str], str]:
        """Returns the function that names a layer's parameters: they have the model's names."""
        return lambda layer, name: name

    def names(self, count: int) -> ModelNames:
        """Returns the function that names the parameters of ``count`` stages in the model."""
        return self._even(count).names(count)

    def _even(self, count: int) -> LayeredSource:
        """Returns the model cut nearly evenly into ``count`` stages.

        Larger stages come first, as the last stage also contains the head.
        """
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
        """Returns the functions that create the stages.

        Raises InputError if there are more stages than decoder layers.
        """
        return self._even(count).stages(count)

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        """Returns the parameters that several of these stages share."""
        return self._even(count).tied(count)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the model's own loss: the mean cross-entropy of the next token.

        ``output``: logits (B, T, V). ``target``: labels (B, T), which the model shifts.
        """
        model = self.skeleton.model
        vocabulary = model.config.vocab_size
        loss: Tensor = model.loss_function(logits=output, labels=target, vocab_size=vocabulary)
        return loss

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Returns the tokens (B, T) of one step, one tensor per microbatch; also used as labels."""
        return self._microbatches(self._tokens[0], step, microbatches)

    def eval_batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Returns tokens that are the same for every step.

        Raises InputError if ``data`` is given without ``eval_data``.
        """
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
        """Returns AdamW without weight decay."""
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=0.0)


def _within(name: str, modules: Sequence[str]) -> bool:
    """Whether a parameter with this name is in one of the modules."""
    return any(name.startswith(f"{module}.") for module in modules)
