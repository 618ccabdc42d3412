"""Hugging Face models as model sources, from a model's folder or only its ``config.json``."""

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
EVALUATION = 1 << 32  # added to the seed to get that of the tokens for evaluation
CONFIG, TOKENIZER = "config.json", "tokenizer.json"


@dataclass(frozen=True)
class HuggingFace:
    """A causal language model of ``transformers`` as a model source that defines its layers.

    ``path``: the model's folder (``config.json`` and optionally weights in safetensors), or a
    ``config.json``. If there are no weights, they are initialized from ``seed``, identically in
    every process. ``seq``: tokens per sequence; by default 128, or the model's maximum if that is
    less. ``micro_batch``: sequences per microbatch. ``data``, ``eval_data``: files with tokens for
    training and evaluation (see :class:`Tokens`); None: random tokens. ``lr``: learning rate of
    AdamW. ``attention``, ``experts``: names of implementations, such as ``eager``; by default, the
    library chooses them. ``recompute``: ``none``; or ``full``, if each decoder layer is to save
    only its input and be recomputed in its backward.

    Raises InputError at creation for invalid settings. For a model that cannot be cut, InputError
    is raised when the model is first needed, or by :meth:`check`.
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
        """Returns only the settings, to pickle: other processes read the model themselves."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def check(self) -> None:
        """Raises InputError if the model cannot be cut, or a file or a setting is invalid.

        Reads the configuration, opens the weight files, and creates a microbatch of tokens.
        """
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
        """The whole model on ``meta``, without weights. Raises InputError if it cannot be cut."""
        kernels = {"attn_implementation": self.attention, "experts_implementation": self.experts}
        asked = {key: value for key, value in kernels.items() if value is not None}
        return read_skeleton(self._config, self.name, asked)

    @cached_property
    def files(self) -> list[Path]:
        """The model's weight files; an empty list if weights are to be initialized randomly.

        Raises InputError as :func:`.weights.files_of`.
        """
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
        """Two sources of tokens: for training and for evaluation."""
        tokenizer = self._config.parent / TOKENIZER
        vocabulary = self.skeleton.model.config.vocab_size
        return (
            Tokens(self.data, vocabulary, self.seed, tokenizer),
            Tokens(self.eval_data, vocabulary, self.seed + EVALUATION, tokenizer),
        )

    @cached_property
    def length(self) -> int:
        """Tokens per sequence. Raises InputError if it is more than the model's maximum."""
        most: int | None = getattr(self.skeleton.model.config, "max_position_embeddings", None)
        if self.seq is not None and most is not None and self.seq > most:
            raise InputError(
                f"{self.name}: seq: expected at most {most}, the model's max_position_embeddings, "
                f"got {self.seq}"
            )
        return self.seq or min(LENGTH, most or LENGTH)

    def named_layers(self) -> Sequence[tuple[Layer, Callable[[], nn.Module]]]:
        """Returns the layers in forward order, each with a function that creates its module.

        The first is ``embedding`` (all before the decoder layers), then each decoder layer follows,
        and the last is ``head``. The model can be cut between any two of them.
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
        """Returns a layer's module with its weights, loaded or initialized.

        ``make``: the module's class. ``units``: names of the model's modules that the layer
        consists of. ``place``: the layer's index, on which its random numbers depend. Weights are
        created only for these units and for units that share weights with them; if torch's default
        device is ``meta``, no weights are loaded or initialized.
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
        """Returns groups of (layer name, parameter name in the layer) that are one parameter.

        An example is the weight that the embedding and the head share.
        """
        layers = [layer for layer, _ in self.named_layers()]
        return tuple(
            tuple(
                (next(x.name for x in layers if _within(name, x.modules)), name) for name in group
            )
            for group in self.skeleton.ties
        )

    def layer_names(self) -> Callable[[Layer, str], str]:
        """Returns a function of (layer, parameter name in it) that returns the name in the model.

        That is the parameter name itself, as layers use the model's names.
        """
        return lambda layer, name: name

    def names(self, count: int) -> ModelNames:
        """Returns a function of (stage, parameter name in it) that returns the name in the model.

        ``count``: the number of stages into which the model is cut.
        """
        return self._even(count).names(count)

    def _even(self, count: int) -> LayeredSource:
        """Returns the model cut into ``count`` stages with nearly equal numbers of decoder layers.

        Stages with one layer more come first, as the last stage also contains the head. Raises
        InputError if there are more stages than decoder layers.
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
        """Returns ``count`` functions that create the modules of nearly equal stages.

        Raises InputError if there are more stages than decoder layers.
        """
        return self._even(count).stages(count)

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        """Returns groups of (stage, parameter name) that are one tied parameter."""
        return self._even(count).tied(count)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the model's own loss, the mean cross-entropy of the next token, a scalar.

        ``output``: logits (batch, length, vocabulary). ``target``: the same tokens as the input
        (batch, length); the model itself shifts them by one position.
        """
        model = self.skeleton.model
        vocabulary = model.config.vocab_size
        loss: Tensor = model.loss_function(logits=output, labels=target, vocab_size=vocabulary)
        return loss

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Returns inputs and targets of one step, which are the same tokens.

        Each is one tensor (micro_batch, length) per microbatch. Raises InputError for invalid data.
        """
        return self._microbatches(self._tokens[0], step, microbatches)

    def eval_batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Returns inputs and targets of an evaluation, as :meth:`batch`; equal for each ``step``.

        Raises InputError if ``data`` is given without ``eval_data``, or for invalid data.
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
        """Returns AdamW for ``parameters``, with learning rate ``lr`` and without weight decay."""
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=0.0)


def _within(name: str, modules: Sequence[str]) -> bool:
    """Whether the parameter ``name`` is in one of ``modules``; all are names in the model."""
    return any(name.startswith(f"{module}.") for module in modules)
