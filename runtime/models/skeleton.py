"""A Hugging Face model without its weights, on the ``meta`` device, and what it consists of::

tokens ─▶ embed_tokens, rotary_emb │ layers.0 │ layers.1 │ ... │ norm, lm_head ─▶ logits
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.fft import irfft, rfft

from .layer_calls import CutError, LayerCalls, StandIns


@dataclass(frozen=True, eq=False)
class Frame:
    """``model``: a causal language model, on ``meta``; ``layers``: the name of its list of decoder
    layers; ``form``: of what they return (:class:`StandIns`)."""

    model: Any
    layers: str
    form: int

    @property
    def body(self) -> str:
        """The name of the module that has the layers."""
        return self.layers.rpartition(".")[0]

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the decoder layers."""
        return tuple(
            f"{self.layers}.{i}" for i in range(len(self.model.get_submodule(self.layers)))
        )

    @cached_property
    def units(self) -> tuple[str, ...]:
        """The names of the largest modules that are beside the layers."""
        path = self.layers.split(".")[:-1]
        around = [".".join(path[:depth]) for depth in range(len(path) + 1)]
        names = [
            f"{module}.{child}".lstrip(".")
            for module in around
            for child, _ in self.model.get_submodule(module).named_children()
        ]
        return tuple(name for name in names if name not in around and name != self.layers)

    def stand_ins(self) -> StandIns:
        """Stand-ins for the layers."""
        return StandIns(self.model.get_submodule(self.layers), self.form)

    def placeholder(
        self, seed: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[Any, StandIns]:
        """The model with stand-ins for its layers, and drawn parameters that take no room
        (:func:`_windows`)."""
        stand_ins = self.stand_ins()
        made = _copied(
            self.model, {self.model.get_submodule(self.layers): stand_ins.modules}
        ).eval()
        random = torch.Generator().manual_seed(seed)
        for module in made.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    row = torch.rand(sum(parameter.shape) + 1, generator=random)
                    values = _windows(row.to(device, dtype), parameter.shape)
                    drawn = nn.Parameter(values, requires_grad=False)
                    drawn._is_hf_initialized = True  # type: ignore[attr-defined]
                    module._parameters[name] = drawn
        initialise(made, device)
        return made, stand_ins

    def part(self, kept: Sequence[str]) -> Any:
        """A copy of the model that has these units and layers alone, still on ``meta``."""
        left = [name for name in (*self.units, *self.blocks) if name not in kept]
        return _copied(self.model, {self.model.get_submodule(x): nn.Identity() for x in left})


@dataclass(frozen=True, eq=False)
class Skeleton(Frame):
    """A model that may be cut between its layers.

    ``before``, ``after``: the names of the modules that run before and after the layers; of the
    latter ``closing`` belong to the body, which returns an ``output``.
    """

    before: tuple[str, ...]
    closing: tuple[str, ...]
    after: tuple[str, ...]
    output: type[Any]

    @property
    def config(self) -> Any:
        """The configuration of the model's decoder."""
        return self.model.config.get_text_config()

    @cached_property
    def calls(self) -> LayerCalls:
        """The plans by which each layer is called."""
        return LayerCalls(self.placeholder)

    @cached_property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """Names of parameters that are one, several each."""
        names: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        return tuple(tuple(group) for group in names.values() if len(group) > 1)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss that the model's own ``forward`` computes."""
        loss: Tensor = self.model.loss_function(
            logits=logits, labels=labels, vocab_size=self.config.vocab_size
        )
        return loss

    def headed(self, model: Any) -> list[nn.Module]:
        """The modules after the layers in the body of a copy of the model, as :func:`logits` takes
        them; the copy loses its body."""
        units = [model.get_submodule(name) for name in self.closing]
        parent, _, child = self.body.rpartition(".")
        setattr(model.get_submodule(parent), child, _Given(self.output))
        return units


def _windows(row: Tensor, shape: Sequence[int]) -> Tensor:
    """A view of ``row`` with this shape: the number at ``i, j, ...`` is the row's at their sum."""
    return row.as_strided(shape, [1] * len(shape))


def windowed_product(x: Tensor, weight: Tensor) -> Tensor:
    """The ``linear`` by a matrix of windows (:func:`_windows`), computed as a correlation with
    their row, so that the matrix is never made."""
    row = weight.as_strided((sum(weight.shape) - 1,), (1,)).float()
    spectrum = rfft(row) * rfft(x.float(), len(row)).conj()
    product: Tensor = irfft(spectrum, len(row))[..., : len(weight)]
    return product.to(x.dtype)


def logits(model: Any, units: Sequence[nn.Module], hidden: Tensor) -> Tensor:
    """The logits of ``hidden``, by ``units`` and then a model without its body."""
    for unit in units:
        hidden = unit(hidden)
    found: Tensor = model(inputs_embeds=hidden, use_cache=False).logits
    return found


class _Given(nn.Module):
    """A module in place of the body, which returns its input."""

    def __init__(self, output: type[Any]) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_: Any, inputs_embeds: Tensor | None = None, **__: Any) -> Any:
        if inputs_embeds is None:
            raise CutError("what has its layers is not called with inputs_embeds")
        if issubclass(self._output, tuple):
            return (inputs_embeds,)
        return self._output(last_hidden_state=inputs_embeds)


def initialise(model: Any, device: torch.device | str) -> None:
    """Draws the parameters that the model has not been given, and computes its buffers."""
    for module in model.modules():
        module.__dict__.pop("_is_hf_initialized", None)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=device)
    with torch.no_grad():
        model.initialize_weights()


def _copied(model: Any, replaced: Mapping[nn.Module, nn.Module]) -> Any:
    """A copy with other modules in places of some, which are not copied; nor are configurations."""
    memo: dict[int, Any] = {id(old): new for old, new in replaced.items()}
    for module in model.modules():
        config = getattr(module, "config", None)
        memo[id(config)] = config
    return deepcopy(model, memo)
