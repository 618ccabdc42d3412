"""The split of B and W: weight gradients are put off without walking the autograd graph.

While a stage's forward runs, :class:`Deferral` (a torch function mode) swaps each product with one
of the stage's parameters for :class:`_Deferred`, whose backward computes the input's gradient alone
and queues what the weight's gradient needs. W empties the queue and accumulates in place into
``parameter.grad``. What is not intercepted (norms, products with a tensor computed from a
parameter, calls inside composite functions such as ``nn.MultiheadAttention``'s) gets its gradient
in B, from autograd: just as right, only earlier.

The mode is active in B as well where activation checkpointing runs a block's forward there: the
queue knows (``again``). Elsewhere B is autograd's alone.
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
from .parameter_views import AnyRule, OfView, of_view


class WeightQueue:
    """The weight gradients of one stage and microbatch that wait for their W.

    ``again``: some of the forward that fills it may run again in B.
    """

    __slots__ = ("_memory", "_waiting", "again")

    def __init__(self, memory: Memory) -> None:
        self.again = False
        self._memory = memory
        self._waiting: list[tuple[AnyRule, Tensor, Tensor, int, int, Held]] = []

    def put(self, rule: AnyRule, x: Tensor, dy: Tensor) -> None:
        held = self._memory.hold(x, dy)
        self._waiting.append((rule, x, dy, x._version, dy._version, held))

    def parameters(self) -> set[int]:
        """The ids of the parameters whose gradients wait."""
        rules = [rule for rule, *_ in self._waiting]
        weights = [rule.base if isinstance(rule, OfView) else rule.weight for rule in rules]
        return {id(p) for p in (*weights, *(rule.bias for rule in rules)) if p is not None}

    def clear(self) -> None:
        """Lets go of all that waits, uncomputed."""
        while self._waiting:
            self._memory.release(self._waiting.pop()[-1])

    def run(self) -> None:
        """Computes all that waits and lets go of it, one by one.

        Raises ChangedInPlaceError where it is not what B left.
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
    """Defers the weight gradients of one stage's parameters into ``queue``.

    One object serves all microbatches of a stage: ``with deferral.into(queue)``. Parameters that
    are frozen or carry gradient hooks, on themselves or where autograd accumulates them, are left
    to autograd, and so are products of what lies in the memory of ``leaving``, which is given back
    after each op. A product that is hidden from autograd, or saved by other hooks than a ledger's
    or offloaded activations', is one of a forward that may run again.
    """

    _queue: WeightQueue

    def __init__(self, parameters: Iterable[nn.Parameter], leaving: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self._leaving = leaving
        self._parameters = frozenset(id(p) for p in parameters if not AccumulationHooks([p]))

    def into(self, queue: WeightQueue) -> Self:
        """The mode that fills ``queue``."""
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
        """The rule by which W computes the product's gradients; None: autograd does, in B."""
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
                or tensor.is_complex()  # a product's gradients would be those of its conjugate
                or tensor._backward_hooks
                or tensor._post_accumulate_grad_hooks
            ):
                return False
        return True


def lies_in(tensor: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether a tensor has the memory of one of the others."""
    for other in others:
        if type(tensor) in PLAIN and type(other) in PLAIN:
            if _share_memory(tensor, other):
                return True
        elif any(_share_memory(a, b) for a in parts(tensor) for b in parts(other)):
            return True
    return False


def run_backward(roots: tuple[GradientEdge | Tensor, ...], gradients: tuple[Tensor, ...]) -> None:
    """The backward pass from ``roots``, with the torch function modes that are active.

    What ``torch.autograd.backward`` runs in the end, without its checks (the engine makes its own).
    Called on a tensor that is a torch function, inside which the mode is off.
    """
    if not roots:
        return
    # on a GPU in this thread, too, not in torch's one for each: no context to be carried there
    with nullcontext() if gradients[0].is_cpu else torch.autograd.set_multithreading_enabled(False):
        _run_here(roots, gradients, False, False, (), allow_unreachable=True, accumulate_grad=True)


def gradient_edge(output: Tensor) -> GradientEdge:
    """The start of ``output``'s backward; keeps its graph alive, but not its memory.

    What ``torch.autograd.graph.get_gradient_edge`` gives. A node written in Python does not keep
    its C++ self alive: torch holds on to it by a view of the output, this by the lightest
    operation that has such a node as its input.
    """
    node = output.grad_fn
    if not isinstance(node, torch._C._FunctionBase):
        return get_gradient_edge(output)
    return GradientEdge(node, output.output_nr, _held_by(output).grad_fn)


_share_memory: Callable[[Tensor, Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]
"""Whether two tensors have one storage, without objects for the storages."""
_push, _pop = torch._C._push_on_torch_function_stack, torch._C._pop_torch_function_stack
_transformed = torch._C._are_functorch_transforms_active
_run_here = Variable._execution_engine.run_backward
_held_by = torch._C._functions.DelayedError("holds a graph, has no backward", 1)


def _apply(rule: AnyRule, x: Tensor, queue: WeightQueue) -> Tensor:
    device = x.device.type
    if rule.autocast and torch.is_autocast_enabled(device):
        if x.dtype is not torch.float64:  # autocast leaves float64 alone
            x = x.to(torch.get_autocast_dtype(device))
        with torch.autocast(device, enabled=False):
            return _apply(rule, x, queue)
    # the weight is an argument only where it is needed for a backward: each is a node of the graph
    return _run(rule, queue, x, None if x.requires_grad else rule.weight)


class _Deferred(torch.autograd.Function):
    """A product whose backward leaves the gradients of weight and bias to the queue.

    ``weight`` is an argument so that the backward runs although x needs no gradient.
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


# without what `Function.apply` does for functorch: its transforms are left to autograd
_run = cast("Callable[..., Tensor]", super(torch.autograd.Function, _Deferred).apply)
