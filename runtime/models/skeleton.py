"""A Hugging Face model without its weights, on the ``meta`` device, and what it consists of::

    tokens ─▶ embed_tokens, rotary_emb │ layers.0 │ layers.1 │ ... │ norm, lm_head ─▶ logits
              before                   │ blocks                    │ after

The model's own ``forward`` runs on each rank, with stand-ins for its layers that note what they are
called with: positions, rotations, masks. These depend only on the shape of the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pipeloom.ir.errors import InputError

from ..fake_tensors import really
from ..uncompiled import uncompiled

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
Shape: TypeAlias = tuple[tuple[int, int], torch.dtype, torch.device]


@dataclass(frozen=True, eq=False)
class Skeleton:
    """``model``: a causal language model, on ``meta``; ``layers``: the name of its list of decoder
    layers; ``closing``: the names of the modules beside them that run after them, in order;
    ``tuples``: whether a layer returns its output in a tuple."""

    model: Any
    layers: str
    closing: tuple[str, ...]
    tuples: bool
    _calls: dict[Shape, list[Call]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, closing: Sequence[str], *, tuples: bool) -> Skeleton:
        """``closing``: names within the module that has the layers; those it lacks are left out."""
        count = model.config.num_hidden_layers
        parts = model.named_modules()  # the outermost first
        layers = next(n for n, x in parts if isinstance(x, nn.ModuleList) and len(x) == count)
        body = layers.rpartition(".")[0]
        there = dict(model.get_submodule(body).named_children())
        found = tuple(f"{body}.{name}" for name in closing if name in there)
        return cls(model, layers, found, tuples)

    def __deepcopy__(self, memo: object) -> Skeleton:
        return self

    @property
    def body(self) -> str:
        """The name of the module that has the layers."""
        return self.layers.rpartition(".")[0]

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the decoder layers."""
        count = len(self.model.get_submodule(self.layers))
        return tuple(f"{self.layers}.{i}" for i in range(count))

    @cached_property
    def before(self) -> tuple[str, ...]:
        """The names of the modules that run before the layers."""
        found = self._beside(self.body)
        return tuple(name for name in found if name not in self.closing)

    @cached_property
    def after(self) -> tuple[str, ...]:
        """The names of the modules that run after the layers: the closing ones, then those around
        the body."""
        path = self.body.split(".")
        around = (".".join(path[:depth]) for depth in reversed(range(len(path))))
        return (*self.closing, *(name for module in around for name in self._beside(module)))

    def _beside(self, module: str) -> list[str]:
        """The modules of this one that do not have the layers."""
        children = self.model.get_submodule(module).named_children()
        names = [f"{module}.{child}".lstrip(".") for child, _ in children]
        return [name for name in names if not f"{self.layers}.".startswith(f"{name}.")]

    @cached_property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """Names of parameters that are one, several each."""
        names: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        return tuple(tuple(group) for group in names.values() if len(group) > 1)

    def part(self, kept: Sequence[str]) -> Any:
        """A copy of the model that has only these units and layers, still on ``meta``."""
        every = (*self.before, *self.blocks, *self.after)
        left = [self.model.get_submodule(name) for name in every if name not in kept]
        memo: dict[int, Any] = {id(module): nn.Identity() for module in left}
        for module in self.model.modules():
            config = getattr(module, "config", None)
            memo[id(config)] = config  # not copied
        return deepcopy(self.model, memo)

    def filled(self, model: Any) -> StandIns:
        """Puts stand-ins in the place of the layers of a copy of the model."""
        stand_ins = StandIns(self.model.get_submodule(self.layers), tuples=self.tuples)
        model.set_submodule(self.layers, stand_ins.modules)
        return stand_ins

    def headed(self, model: Any) -> list[nn.Module]:
        """The closing modules of a copy of the model, which run before it; the copy loses its
        body."""
        units = [model.get_submodule(name) for name in self.closing]
        model.set_submodule(self.body, _Given())
        return units

    def calls(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> list[Call]:
        """The arguments of each layer's call for tokens of this shape, made once, without hidden
        states."""
        key = (shape, dtype, device)
        if key not in self._calls:
            self._make_calls(*key)
        return self._calls[key]

    @uncompiled
    def _make_calls(self, *key: Any) -> None:
        with really(), torch.no_grad():
            shape, dtype, device = key
            placeholder = self._placeholder(dtype, device)
            tokens = torch.zeros(shape, dtype=torch.long, device=device)
            self._calls[key] = [with_hidden(call, None) for call in capture(*placeholder, tokens)]

    def _placeholder(self, dtype: torch.dtype, device: torch.device) -> tuple[Any, StandIns]:
        """The model with stand-ins for its layers, whose parameters are 0 and take no memory."""
        made = self.part((*self.before, *self.after))
        stand_ins = self.filled(made.eval())
        zero = torch.zeros((), dtype=dtype, device=device)
        for module in made.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    drawn = nn.Parameter(zero.expand(parameter.shape), requires_grad=False)
                    drawn._is_hf_initialized = True  # type: ignore[attr-defined]
                    module._parameters[name] = drawn
        initialise(made, device)
        return made, stand_ins

    def fixed_tensors(self) -> list[Tensor]:
        """The tensors that layers are called with, the same for all tokens of a shape."""
        every = [tree_leaves(call) for calls in self._calls.values() for call in calls]
        return [leaf for leaves in every for leaf in leaves if isinstance(leaf, Tensor)]


class Reached(Exception):  # noqa: N818
    """The last layer was called, and nothing after it is wanted."""


class StandIns:
    """``modules`` in place of a model's layers: each notes what it is called with and returns its
    hidden states, in a tuple if ``tuples``."""

    def __init__(self, layers: nn.Module, *, tuples: bool) -> None:
        self.calls: list[Call] = []
        self.tuples = tuples
        self.modules = nn.ModuleList(_StandIn(layer, self) for layer in layers.children())


class _StandIn(nn.Module):
    def __init__(self, layer: nn.Module, stand_ins: StandIns) -> None:
        super().__init__()
        self.__dict__["_of"] = layer, stand_ins  # not as a submodule

    def __getattr__(self, name: str) -> Any:
        """The layer's own attribute, such as its kind of attention, which the model asks for."""
        return getattr(self.__dict__["_of"][0], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        stand_ins = self.__dict__["_of"][1]
        stand_ins.calls.append((args, kwargs))
        if len(stand_ins.calls) == len(stand_ins.modules):
            raise Reached
        hidden = hidden_of((args, kwargs))
        return (hidden,) if stand_ins.tuples else hidden


def hidden_of(call: Call) -> Any:
    """The hidden states in a layer's call, its first argument."""
    args, kwargs = call
    return args[0] if args else kwargs["hidden_states"]


def with_hidden(call: Call, hidden: Tensor | None) -> Call:
    """The call with other hidden states."""
    args, kwargs = call
    return ((hidden, *args[1:]), kwargs) if args else ((), kwargs | {"hidden_states": hidden})


@uncompiled
def capture(model: Any, stand_ins: StandIns, tokens: Tensor) -> list[Call]:
    """The calls of the layers for these tokens. Raises InputError where the model computes anything
    between them.

    Where they are traced the model is told so: it asks then no questions about masks' values.
    """
    stand_ins.calls = []
    told = patch("torch.compiler.is_compiling", lambda: True)
    with suppress(Reached), nullcontext() if type(tokens) is Tensor else told:
        model(input_ids=tokens, use_cache=False)
    calls, stand_ins.calls = stand_ins.calls, []
    if any(hidden_of(call) is not hidden_of(calls[0]) for call in calls):
        raise InputError(f"{type(model).__name__}: it computes something between its layers")
    return calls


class _Given(nn.Module):
    """A module in place of the body, which returns its input."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Output:
        return _Output((inputs_embeds,))


class _Output(tuple[Tensor]):
    """The body's output with hidden states, and nothing else."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


def initialise(model: Any, device: torch.device | str) -> None:
    """Draws the parameters that the model has not been given, and computes its buffers."""
    for module in model.modules():
        module.__dict__.pop("_is_hf_initialized", None)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=device)
    with torch.no_grad():
        model.initialize_weights()
