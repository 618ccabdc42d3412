"""Traces a stage into its joint graph without computing anything.

Modules that load parts of torch.compile are imported on use, so that runs without graphs start
faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.compiler import set_stance as as_written  # to run functions without torch.compile
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import checkpoint

from ...device import accelerator
from ...dtensors import is_dtensor, local, whole
from ...tensors.rng_state import generators_of
from ..joint import Joint, Role, Value
from ..rewrites import simplify
from .aten import as_output
from .errors import TraceError, why
from .random_numbers import DRAWN, undrawn

Forward = Callable[[nn.Module, Sequence[Tensor]], Sequence[Tensor]]
Function = Callable[..., Sequence[Tensor]]


def trace_joint(module: nn.Module, inputs: Sequence[Tensor], forward: Forward) -> Joint:
    """Returns the joint graph of ``forward(module, inputs)``, which returns a sequence of tensors.

    Nothing is computed: only shape, strides, dtype and ``requires_grad`` of ``inputs`` and of the
    module's tensors are used. Raises TraceError, with the line of the model, if ``forward`` cannot
    be traced.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    own: dict[str, Tensor] = {**parameters, **buffers}
    places = _places(module)

    def function(*flat: Tensor) -> Sequence[Tensor]:
        held = {id(x): whole(x, part) for x, part in zip(own.values(), flat, strict=False)}
        with _with_tensors(module, {name: held[id(x)] for name, x in places.items()}):
            return [as_output(x) for x in forward(module, flat[len(own) :])]

    values = [
        *(Value(Role.PARAMETER, name) for name in parameters),
        *(Value(Role.BUFFER, name) for name in buffers),
        *(Value(Role.INPUT, i) for i in range(len(inputs))),
    ]
    arguments = [*map(_leaf, own.values()), *inputs]
    return simplify(_exported(function, arguments, values, generators_of(module)))


def _places(module: nn.Module) -> dict[str, Tensor]:
    """Returns all parameters and buffers by path, one path for each registration in a module.

    Only one path of a module with several names is used: a tensor that is replaced twice would not
    be restored.
    """
    return {
        f"{path}.{name}" if path else name: tensor
        for path, part in module.named_modules()
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]
        if tensor is not None
    }


def _leaf(tensor: Tensor) -> Tensor:
    """Returns the local part of a DTensor as a leaf tensor; other tensors unchanged."""
    if not is_dtensor(tensor):
        return tensor
    return local(tensor).detach().requires_grad_(tensor.requires_grad)


class _Computation(nn.Module):
    """A function as a module without parameters; all tensors that it uses are arguments."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self._function = function

    def forward(self, *arguments: Tensor) -> Sequence[Tensor]:
        before = torch.initial_seed()
        found = self._function(*arguments)
        if torch.initial_seed() != before:  # checked here: torch restores its state after a trace
            raise TraceError(DRAWN)
        return found


def _exported(
    function: Function,
    arguments: Sequence[Tensor],
    values: Sequence[Value],
    generators: Iterable[torch.Generator],
) -> Joint:
    """Returns the joint graph of ``function`` for tensors like ``arguments``.

    Nothing is computed. ``values``: the meaning of each argument. ``function`` may draw random
    numbers from torch's default generator and from ``generators``. The graph returns gradients of
    all arguments that require one, and has no in-place operations. Raises TraceError if
    ``function`` cannot be traced.
    """
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    mode = FakeTensorMode(allow_non_fake_inputs=True)  # for tensors that are plain attributes
    tracing = torch._guards.tracing(torch._guards.TracingContext(mode))
    with undrawn(generators), ExitStack() as held, tracing, _as_traced():
        try:
            module = aot_export_joint_with_descriptors(
                held, _Computation(function), tuple(arguments), {}
            ).graph_module
        except TraceError:
            raise
        except Exception as error:
            raise TraceError(why(error)) from error
    assert isinstance(module, fx.GraphModule)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    output = module.graph.output_node()
    ends: Any = output.args[0]
    pairs = zip(ends, output.meta["desc"], strict=True)
    return Joint(
        module.graph,
        module,
        {node: _value(node.meta["desc"], values) for node in placeholders},
        [(node, _value(found, values)) for node, found in pairs if isinstance(node, fx.Node)],
    )


_NEW = {Role.BUFFER: Role.BUFFER_UPDATE}
_GRADIENTS = {Role.PARAMETER: Role.PARAMETER_GRADIENT, Role.INPUT: Role.INPUT_GRADIENT}


def _value(found: Any, values: Sequence[Value]) -> Value:
    """Returns the meaning of a graph's input or output, given torch's description of it.

    ``values``: the meaning of the traced function's arguments. Raises TraceError for an input or
    output that a stage cannot have.
    """
    from torch._functorch._aot_autograd import descriptors as desc

    match found:
        case desc.PlainAOTInput(idx=index):
            return values[index]
        case desc.TangentAOTInput(output=desc.PlainAOTOutput(idx=index)):
            return Value(Role.TANGENT, index)
        case desc.PlainAOTOutput(idx=index):
            return Value(Role.OUTPUT, index)
        case desc.InputMutationAOTOutput(mutated_input=desc.PlainAOTInput(idx=index)):
            return _of(values[index], _NEW)
        case desc.GradAOTOutput(grad_of=desc.PlainAOTInput(idx=index)):
            return _of(values[index], _GRADIENTS)
    raise TraceError(f"torch traces it with a value that is not known here: {found.expr()}")


def _of(value: Value, roles: dict[Role, Role]) -> Value:
    if value.role not in roles:
        raise TraceError(f"its forward changes {value.role.name.lower()} {value.key}")
    return Value(roles[value.role], value.key)


@contextmanager
def _with_tensors(module: nn.Module, tensors: dict[str, Tensor]) -> Iterator[None]:
    """A context in which ``tensors`` replace the module's parameters and buffers, by path.

    A forward in it may modify buffers in place. Raises TraceError if it replaces a tensor.
    """
    found = dict(tensors)
    with _reparametrize_module(module, found):
        yield
    for name, tensor in tensors.items():
        if found[name] is not tensor:
            raise TraceError(f"its forward puts another tensor in the place of {name}")


def _checkpointed(*_: Any, **__: Any) -> NoReturn:
    raise TraceError("it computes a part again in its backward (torch.utils.checkpoint)")


def _restored(*_: Any, **__: Any) -> NoReturn:
    raise TraceError(DRAWN)


_REFUSED: list[tuple[Any, str, Any]] = [
    (checkpoint, "_checkpoint_without_reentrant_generator", _checkpointed),
    (checkpoint, "CheckpointFunction", SimpleNamespace(apply=_checkpointed)),
    *((place, "set_rng_state", _restored) for place in (torch, torch.random)),  # used by fork_rng
]
_SEEDING = ("manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all")
"""Functions of torch's module for an accelerator that set its random state.

A trace refuses them, as it does not compare the random states of accelerators.
"""


@contextmanager
def _as_traced() -> Iterator[None]:
    """A context for traces, in which calls that a graph cannot represent raise TraceError.

    These are activation checkpointing, and setting random states. Functions compiled by
    torch.compile run uncompiled.
    """
    from torch._dynamo import config

    with ExitStack() as within:
        within.enter_context(as_written("force_eager"))
        within.enter_context(config.patch(error_on_nested_fx_trace=False))
        device = accelerator()
        seeding = [(device, name, _restored) for name in _SEEDING if hasattr(device, name)]
        for place, name, other in [*_REFUSED, *seeding]:
            within.enter_context(patch.object(place, name, other))
        yield
