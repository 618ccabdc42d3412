"""Splits the backward into B and W: defers weight gradients without walking the autograd graph.

During a stage's forward, :class:`Deferral` (a torch function mode) replaces each product with a
parameter of the stage by :class:`_Deferred`. Its backward computes only the input gradient and
queues the tensors from which W computes the weight gradient. W empties the queue and accumulates in
place into ``parameter.grad``. Autograd computes all other weight gradients in B, with the same
result: those of norms, of products with a tensor computed from a parameter, and of calls inside
composite functions such as ``nn.MultiheadAttention``.

If activation checkpointing runs a block's forward again in B, the mode is active there, too
(``WeightQueue.again``). Otherwise, B is a plain autograd backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.autograd.variable import Variable
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

from ..dtensors import PLAIN, parts
from ..measure.activation_ledger import Ledger, saved_by, unchanged
from ..measure.memory import Held, Memory
from ..uncompiled import uncompiled
from .deferred_linear import Rule
from .deferred_ops import RULES
from .gradient_hooks import AccumulationHooks
from .offload import OffloadedActivations
from .parameter_views import AnyRule, of_view


class WeightQueue:
    """The deferred weight gradients of one stage and microbatch.

    ``again``: whether activation checkpointing may run a part of the forward again in B.
    """

    __slots__ = ("_memory", "_waiting", "again")

    def __init__(self, memory: Memory) -> None:
        self.again = False
        self._memory = memory
        self._waiting: list[tuple[AnyRule, Tensor, Tensor, int, int, Held]] = []

    def put(self, rule: AnyRule, x: Tensor, dy: Tensor) -> None:
        held = self._memory.hold(x, dy)
        self._waiting.append((rule, x, dy, x._version, dy._version, held))

    def clear(self) -> None:
        """Drops all entries without computing them."""
        while self._waiting:
            self._memory.release(self._waiting.pop()[-1])

    def run(self) -> None:
        """Runs W: adds the queued weight gradients to ``.grad``, and drops them one by one.

        Raises ChangedInPlaceError if a queued tensor was modified since B.
        """
        enabled = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            while self._waiting:
                rule, x, dy, version_of_x, version_of_dy, held = self._waiting.pop()
                rule.accumulate(unchanged(x, version_of_x), unchanged(dy, version_of_dy))
                if held:
                    self._memory.release(held)
        finally:
            torch._C._set_grad_enabled(enabled)


class Deferral(TorchFunctionMode):
    """Defers the weight gradients of one stage's parameters into a queue.

    One object serves all microbatches of a stage: ``with deferral.into(queue)``. Products are left
    to autograd if their parameter is frozen or has gradient hooks (on itself or on its accumulation
    node), or if their input shares memory with a tensor of ``leaving``, which is freed
    after each op.

    Sets ``queue.again`` if activation checkpointing may run the forward again in B. That is assumed
    if a product runs without gradients, in a compiled module, or inside hooks for saved tensors
    other than those of the ledger and of offloading.
    """

    _queue: WeightQueue

    def __init__(self, parameters: Iterable[nn.Parameter], leaving: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self._leaving = leaving
        self._parameters = frozenset(id(p) for p in parameters if not AccumulationHooks([p]))

    def into(self, queue: WeightQueue) -> Self:
        """Returns this object, as the context that defers weight gradients into ``queue``."""
        self._queue, queue.again = queue, False
        return self

    def __enter__(self) -> Self:
        _push(self)
        return self

    def __exit__(self, *_: object) -> None:
        _pop()

    @uncompiled
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        read = RULES.get(func)
        if read is not None and not _transformed():
            reading = read(*args, **(kwargs or {}))
            rule = None if reading is None else self._deferred(*reading)
            if reading is not None and rule is not None:
                recorded = torch.is_grad_enabled()
                if not recorded or is_compiling() or not saved_by(Ledger, OffloadedActivations):
                    self._queue.again = True
                if recorded:
                    return _apply(rule, reading[1], self._queue)
        return func(*args, **(kwargs or {}))

    def _deferred(self, rule: Rule, x: Tensor) -> AnyRule | None:
        """Returns the rule by which W computes the weight gradient of a product with ``x``.

        Returns None if autograd must compute it.
        """
        if self._leaving and lies_in(x, self._leaving):
            return None
        if self._owns(rule.weight, rule.bias):
            return rule
        viewed = None if is_compiling() else of_view(rule)
        return viewed if viewed is not None and self._owns(viewed.base, rule.bias) else None

    def _owns(self, *tensors: Tensor | None) -> bool:
        for tensor in tensors:
            if tensor is not None and (
                id(tensor) not in self._parameters
                or not tensor.requires_grad
                or tensor._backward_hooks
                or tensor._post_accumulate_grad_hooks
            ):
                return False
        return True


def lies_in(tensor: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether ``tensor`` shares its storage with one of ``others``."""
    for other in others:
        if type(tensor) in PLAIN and type(other) in PLAIN:
            if _share_memory(tensor, other):
                return True
        elif any(_share_memory(a, b) for a in parts(tensor) for b in parts(other)):
            return True
    return False


def run_backward(roots: tuple[GradientEdge | Tensor, ...], gradients: tuple[Tensor, ...]) -> None:
    """Runs the backward pass from ``roots``, whose gradients are ``gradients``.

    Active torch function modes stay active in it. In ``torch.autograd.backward``, which is a torch
    function itself, they would be disabled. So this calls autograd's engine, as that function does
    after its checks; the engine has checks of its own.
    """
    if not roots:
        return
    # on a GPU, use this thread: contexts of this thread are not active in torch's device thread
    with nullcontext() if gradients[0].is_cpu else torch.autograd.set_multithreading_enabled(False):
        _run_here(roots, gradients, False, False, (), allow_unreachable=True, accumulate_grad=True)


def gradient_edge(output: Tensor) -> GradientEdge:
    """Returns the autograd node at which the backward from ``output`` starts.

    The result keeps the output's graph alive, but not its memory. It is equivalent to that of
    torch's function ``get_gradient_edge`` (``torch.autograd.graph``), but created faster for a node
    written in Python. Such a node does not keep its C++ object alive, so a tensor with this graph
    must: torch's function creates a view of the output for that, this one runs the cheapest
    operation on the output.
    """
    node = output.grad_fn
    if not isinstance(node, torch._C._FunctionBase):
        return get_gradient_edge(output)
    return GradientEdge(node, output.output_nr, _held_by(output).grad_fn)


_share_memory: Callable[[Tensor, Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]
"""Whether two tensors share a storage; creates no Python objects for the storages."""
_push, _pop = torch._C._push_on_torch_function_stack, torch._C._pop_torch_function_stack
_transformed = torch._C._are_functorch_transforms_active
_run_here = Variable._execution_engine.run_backward
_held_by = torch._C._functions.DelayedError("holds a graph, has no backward", 1)


def _apply(rule: AnyRule, x: Tensor, queue: WeightQueue) -> Tensor:
    device = x.device.type
    if rule.autocast and torch.is_autocast_enabled(device):
        if x.dtype is not torch.float64:  # autocast does not cast float64
            x = x.to(torch.get_autocast_dtype(device))
        with torch.autocast(device, enabled=False):
            return _apply(rule, x, queue)
    # pass the weight only if it makes the backward run: each argument adds a node to the graph
    return _run(rule, queue, x, None if x.requires_grad else rule.weight)


class _Deferred(torch.autograd.Function):
    """A product whose backward queues the gradients of weight and bias.

    ``weight`` is only passed if x requires no gradient, so that the backward runs nevertheless.
    """

    @staticmethod
    def forward(
        ctx: Any, rule: AnyRule, queue: WeightQueue, x: Tensor, weight: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.rule, ctx.queue, ctx.version = rule, queue, rule.weight._version
        weight, bias = rule.weight, rule.bias
        dtype = x.dtype if x.is_floating_point() else weight.dtype
        if weight.dtype is not dtype:
            weight = weight.to(dtype)
        if bias is not None and bias.dtype is not dtype:
            bias = bias.to(dtype)
        return rule.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("gradients of gradients: a stage whose W is put off has none")
        (x,), rule = ctx.saved_tensors, ctx.rule
        ctx.queue.put(rule, x, dy)
        if not ctx.needs_input_grad[2]:
            return None, None, None, None
        weight = unchanged(rule.weight, ctx.version).to(dy.dtype)
        return None, None, rule.input_grad(dy, x, weight), None


# skips the functorch handling of `Function.apply`; under its transforms nothing is deferred
_run = cast("Callable[..., Tensor]", super(torch.autograd.Function, _Deferred).apply)
