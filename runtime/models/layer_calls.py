"""Arguments with which a model calls its layers: positions, rotations, masks.

A stand-in for each layer notes it. What depends on the shape of the tokens alone is computed once
for each shape on each rank that needs it, and kept; what depends on the tokens, or has a gradient,
is handed on from layer to layer beside the hidden states. To tell them apart, the model is run
twice, on other tokens and with other drawn parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from pipeloom.ir.errors import InputError

from ..fake_tensors import really
from ..uncompiled import uncompiled

Placeholder: TypeAlias = Callable[[int, torch.dtype, torch.device], "tuple[Any, StandIns]"]
Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
CONSTANTS = (type(None), bool, int, float, str, torch.dtype)


class CutError(InputError):
    """The model is not of a form that can be cut; why, in a line."""


class Reached(Exception):  # noqa: N818
    """The last layer was called, and nothing after it is wanted."""


class Ignored:
    """A value that a stand-in returns beside the hidden states: a model that does anything with it
    fails, or calls its next layer with it, which is refused."""


class StandIns:
    """Modules in place of a model's layers: each notes what it is called with and returns its
    input.

    ``form``: how many things a layer returns as a tuple, the hidden states first; 0: these alone.
    ``result``: what the last one returns; None: it raises Reached.
    """

    def __init__(self, layers: nn.Module, form: int) -> None:
        self.calls: list[Call] = []
        self.result: Tensor | None = None
        self._form = form
        self.modules = nn.ModuleList(_StandIn(layer, self) for layer in layers.children())

    def called(self, call: Call) -> Any:
        """Notes the call of one stand-in and returns what the stand-in is to return."""
        self.calls.append(call)
        hidden = _hidden(call)
        if len(self.calls) == len(self.modules):
            if self.result is None:
                raise Reached
            hidden = self.result
        return hidden if self._form == 0 else (hidden, *[Ignored()] * (self._form - 1))

    def check(self) -> None:
        """Raises CutError where a layer does not get what the one before it has returned."""
        if len(self.calls) != len(self.modules):
            raise CutError(f"it called {len(self.calls)} of its {len(self.modules)} layers")
        first = _hidden(self.calls[0])
        if not isinstance(first, Tensor) or first.ndim != 3:
            raise CutError("expected layers that are called with (batch, length, width) first")
        if any(_hidden(call) is not first for call in self.calls):
            raise CutError("it computes something between its layers")


class _StandIn(nn.Module):
    def __init__(self, layer: nn.Module, stand_ins: StandIns) -> None:
        super().__init__()
        self.__dict__["_of"] = layer, stand_ins  # not as a submodule

    def __getattr__(self, name: str) -> Any:
        """The layer's own attribute, such as its kind of attention, which the model asks for."""
        return getattr(self.__dict__["_of"][0], name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_of"][1].called((args, kwargs))


def _hidden(call: Call) -> Any:
    args, kwargs = call
    return args[0] if args else kwargs.get("hidden_states")


@dataclass(frozen=True)
class Handed:
    """The place of a tensor that is handed on: 0 is the hidden states."""

    index: int


@dataclass(frozen=True)
class CallPlan:
    """A plan of each layer's call for tokens of one shape: its leaves (:class:`Handed`, tensors
    that are always the same, constants) and their tree, and how many tensors are handed on."""

    calls: tuple[tuple[list[Any], TreeSpec], ...]
    handed: int

    def call(self, layer: int, tensors: Sequence[Tensor]) -> Call:
        """The arguments of this layer's call where these tensors are handed on to it."""
        leaves, tree = self.calls[layer]
        filled = [tensors[x.index] if isinstance(x, Handed) else x for x in leaves]
        call: Call = tree_unflatten(filled, tree)
        return call

    def tensors(self, calls: Sequence[Call]) -> tuple[Tensor, ...]:
        """The tensors that are handed on, from the calls that a model has made of its layers."""
        found: dict[int, Tensor] = {}
        for call, (leaves, _) in zip(calls, self.calls, strict=True):
            for leaf, planned in zip(tree_flatten(call)[0], leaves, strict=True):
                if isinstance(planned, Handed):
                    found[planned.index] = leaf
        return tuple(found[index] for index in range(self.handed))


class LayerCalls:
    """The plans of a model, one for each shape of tokens, dtype and device."""

    def __init__(self, placeholder: Placeholder) -> None:
        self._placeholder = placeholder
        self._plans: dict[tuple[Any, ...], CallPlan] = {}

    def __deepcopy__(self, memo: object) -> LayerCalls:
        return self

    def plan(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> CallPlan:
        """The plan for tokens of this shape. Raises CutError where layers get something but
        tensors."""
        key = (shape, dtype, device)
        if key not in self._plans:
            self._make(*key)
        return self._plans[key]

    @uncompiled
    def _make(self, *key: Any) -> None:
        with really():
            if key not in self._plans:
                self._plans[key] = self._made(*key)

    def fixed_tensors(self) -> list[Tensor]:
        """The tensors in plans that are the same in every call."""
        calls = [call for plan in self._plans.values() for call in plan.calls]
        return [leaf for leaves, _ in calls for leaf in leaves if isinstance(leaf, Tensor)]

    @torch.no_grad()
    def _made(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> CallPlan:
        first, second = (
            capture(*self._placeholder(seed, dtype, device), torch.full(shape, seed).to(device))
            for seed in range(2)
        )
        handed = {id(_hidden(first[0])): Handed(0)}
        calls = []
        for one, other in zip(first, second, strict=True):
            (leaves, tree), (others, _) = tree_flatten(one), tree_flatten(other)
            calls.append(([_leaf(a, b, handed) for a, b in zip(leaves, others, strict=True)], tree))
        return CallPlan(tuple(calls), len(handed))


def _leaf(one: Any, other: Any, handed: dict[int, Handed]) -> Any:
    if isinstance(one, Tensor):
        if id(one) in handed or one.shape != other.shape or not torch.equal(one, other):
            return handed.setdefault(id(one), Handed(len(handed)))
        return one
    if isinstance(one, Ignored):
        raise CutError("its layers are called with more than one thing that others return")
    if not isinstance(one, CONSTANTS):
        raise CutError(f"its layers are called with a {type(one).__name__}")
    return one


@uncompiled
def capture(model: Any, stand_ins: StandIns, tokens: Tensor) -> list[Call]:
    """The calls of the layers for these tokens.

    Where they are traced the model is told so: it asks then no questions about masks' values.
    """
    stand_ins.calls = []
    told = patch("torch.compiler.is_compiling", lambda: True)
    with suppress(Reached), nullcontext() if type(tokens) is Tensor else told:
        model(input_ids=tokens, use_cache=False)
    stand_ins.check()
    calls, stand_ins.calls = stand_ins.calls, []
    return calls
