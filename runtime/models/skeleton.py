"""A Hugging Face model on the ``meta`` device, without weights, and its parts::

    tokens ─▶ embed_tokens, rotary_emb │ layers.0 │ layers.1 │ ... │ norm, lm_head ─▶ logits
              before                   │ blocks                    │ after

Each rank runs the ``forward`` of the whole model with substitutes for the decoder layers, which
record the arguments with which the model calls each layer: positions, rotary embeddings, masks.
Except for the hidden states, these depend only on the shape of the tokens.
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

from ..uncompiled import uncompiled, untraced

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
Shape: TypeAlias = tuple[tuple[int, int], torch.dtype, torch.device]


@dataclass(frozen=True, eq=False)
class Skeleton:
    """A causal language model on ``meta``, and the names of its parts.

    ``layers``: the name of the ``nn.ModuleList`` of decoder layers. ``closing``: names of the
    modules next to that list that run after the layers, in order. ``tuples``: whether a layer
    returns its output as a tuple. The *body* is the module that contains ``layers``; *units* are
    the modules named by ``before`` and ``after``.
    """

    model: Any
    layers: str
    closing: tuple[str, ...]
    tuples: bool
    _calls: dict[Shape, list[Call]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, closing: Sequence[str], *, tuples: bool) -> Skeleton:
        """Returns the skeleton of ``model``.

        Its layers are the first ``nn.ModuleList`` whose length is ``num_hidden_layers`` in the
        model's configuration. ``closing``: names of modules that run after the layers, in the
        module that contains this list; names that do not exist there are skipped.
        """
        count = model.config.num_hidden_layers
        parts = model.named_modules()  # outermost first
        layers = next(n for n, x in parts if isinstance(x, nn.ModuleList) and len(x) == count)
        body = layers.rpartition(".")[0]
        there = dict(model.get_submodule(body).named_children())
        found = tuple(f"{body}.{name}" for name in closing if name in there)
        return cls(model, layers, found, tuples)

    def __deepcopy__(self, memo: object) -> Skeleton:
        return self

    @property
    def body(self) -> str:
        """The name of the module that contains the list of decoder layers, such as ``model``."""
        return self.layers.rpartition(".")[0]

    @property
    def blocks(self) -> tuple[str, ...]:
        """The names of the decoder layers, in forward order."""
        count = len(self.model.get_submodule(self.layers))
        return tuple(f"{self.layers}.{i}" for i in range(count))

    @cached_property
    def before(self) -> tuple[str, ...]:
        """The names of the modules in the body that run before the layers."""
        found = self._beside(self.body)
        return tuple(name for name in found if name not in self.closing)

    @cached_property
    def after(self) -> tuple[str, ...]:
        """The names of the modules that run after the layers.

        First come those of ``closing``, then all modules outside of the body, such as the head.
        """
        path = self.body.split(".")
        around = (".".join(path[:depth]) for depth in reversed(range(len(path))))
        return (*self.closing, *(name for module in around for name in self._beside(module)))

    def _beside(self, module: str) -> list[str]:
        """Returns the names of the direct children of ``module`` that do not contain the layers."""
        children = self.model.get_submodule(module).named_children()
        names = [f"{module}.{child}".lstrip(".") for child, _ in children]
        return [name for name in names if not f"{self.layers}.".startswith(f"{name}.")]

    @cached_property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """Groups of names in the model that refer to the same (tied) parameter."""
        names: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        return tuple(tuple(group) for group in names.values() if len(group) > 1)

    def part(self, kept: Sequence[str]) -> Any:
        """Returns a copy of the model, still on ``meta``, that contains only the modules ``kept``.

        ``kept``: the names of units and layers; all others are replaced by ``nn.Identity``.
        """
        every = (*self.before, *self.blocks, *self.after)
        left = [self.model.get_submodule(name) for name in every if name not in kept]
        memo: dict[int, Any] = {id(module): nn.Identity() for module in left}
        for module in self.model.modules():
            config = getattr(module, "config", None)
            memo[id(config)] = config  # not copied
        return deepcopy(self.model, memo)

    def filled(self, model: Any) -> StandIns:
        """Replaces the layers of ``model`` by substitutes, and returns the substitutes.

        ``model``: a copy of this skeleton's model.
        """
        stand_ins = StandIns(self.model.get_submodule(self.layers), tuples=self.tuples)
        model.set_submodule(self.layers, stand_ins.modules)
        return stand_ins

    def headed(self, model: Any) -> list[nn.Module]:
        """Replaces the body of ``model`` by one that returns its input.

        ``model``: a copy of this skeleton's model. Returns the body's closing modules, which must
        run before ``model``.
        """
        units = [model.get_submodule(name) for name in self.closing]
        model.set_submodule(self.body, _Given())
        return units

    def calls(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> list[Call]:
        """Returns the arguments with which the model calls each layer, for tokens of ``shape``.

        In place of hidden states, they contain None. Computed once per shape (batch, length), dtype
        and device.
        """
        key = (shape, dtype, device)
        if key not in self._calls:
            self._make_calls(*key)
        return self._calls[key]

    @uncompiled
    def _make_calls(self, *key: Any) -> None:
        with untraced(), torch.no_grad():
            shape, dtype, device = key
            placeholder = self._placeholder(dtype, device)
            tokens = torch.zeros(shape, dtype=torch.long, device=device)
            self._calls[key] = [with_hidden(call, None) for call in capture(*placeholder, tokens)]

    def _placeholder(self, dtype: torch.dtype, device: torch.device) -> tuple[Any, StandIns]:
        """Returns a model that can run to find the arguments of layers, and its substitutes.

        Its parameters are expanded from a single zero, so they need no memory; its buffers have
        their values.
        """
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
        """Returns all tensors in the layers' arguments that were computed so far.

        They do not change between microbatches of the same shape.
        """
        every = [tree_leaves(call) for calls in self._calls.values() for call in calls]
        return [leaf for leaves in every for leaf in leaves if isinstance(leaf, Tensor)]


class Reached(Exception):  # noqa: N818
    """Raised by the last substitute layer to end the ``forward``: nothing after it is needed."""


class StandIns:
    """Substitutes for the decoder layers ``layers``, in the list ``modules``.

    When it is called, each substitute appends the arguments of the call to ``calls`` and returns
    the hidden states among them unchanged; if ``tuples``, in a tuple.
    """

    def __init__(self, layers: nn.Module, *, tuples: bool) -> None:
        self.calls: list[Call] = []
        self.tuples = tuples
        self.modules = nn.ModuleList(_StandIn(layer, self) for layer in layers.children())


class _StandIn(nn.Module):
    def __init__(self, layer: nn.Module, stand_ins: StandIns) -> None:
        super().__init__()
        self.__dict__["_of"] = layer, stand_ins  # not as a submodule

    def __getattr__(self, name: str) -> Any:
        """Returns the attribute ``name`` of the layer itself, as the model may read it."""
        return getattr(self.__dict__["_of"][0], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        stand_ins = self.__dict__["_of"][1]
        stand_ins.calls.append((args, kwargs))
        if len(stand_ins.calls) == len(stand_ins.modules):
            raise Reached
        hidden = hidden_of((args, kwargs))
        return (hidden,) if stand_ins.tuples else hidden


def hidden_of(call: Call) -> Any:
    """Returns the hidden states in the arguments of a layer's call."""
    args, kwargs = call
    return args[0] if args else kwargs["hidden_states"]


def with_hidden(call: Call, hidden: Tensor | None) -> Call:
    """Returns the arguments of a layer's call with its hidden states replaced by ``hidden``."""
    args, kwargs = call
    return ((hidden, *args[1:]), kwargs) if args else ((), kwargs | {"hidden_states": hidden})


@uncompiled
def capture(model: Any, stand_ins: StandIns, tokens: Tensor) -> list[Call]:
    """Runs ``model`` on ``tokens``; returns the arguments with which it calls each layer.

    ``stand_ins``: the substitutes for layers in ``model``. Raises InputError if the model computes
    something between its layers. If ``tokens`` are not plain tensors, as when a graph is traced,
    ``torch.compiler.is_compiling`` is true for the model, so that it does not inspect values.
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
    """A substitute for the body that returns its input as hidden states."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Output:
        return _Output((inputs_embeds,))


class _Output(tuple[Tensor]):
    """The output of a body: only hidden states, all other attributes are None."""

    def __getattr__(self, name: str) -> Tensor | None:
        return self[0] if name == "last_hidden_state" else None


def initialise(model: Any, device: torch.device | str) -> None:
    """Initializes the model's parameters that were not loaded, and computes its buffers.

    Buffers on ``meta`` are created on ``device``.
    """
    for module in model.modules():
        module.__dict__.pop("_is_hf_initialized", None)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=device)
    with torch.no_grad():
        model.initialize_weights()
