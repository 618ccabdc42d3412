"""A stage traced once: its forward and its backward as one graph of ATen calls.

::

    parameters, buffers, inputs  ──▶  forward  ──▶  outputs, updates of buffers
                       gradients of outputs  ──▶  backward  ──▶  gradients of parameters and inputs

Every value that goes in or comes out has a :class:`Value`, which says what it is to the stage. Of a
parameter that is a DTensor the part goes in that is on this process, and of its gradient the part
comes out that is laid out as the parameter's; the collectives are in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from torch import Tensor, fx, nn
from torch.func import functional_call

from ..dtensors import is_dtensor, local, whole
from .simplify import simplify
from .torch_internals.aten import as_output
from .torch_internals.errors import TraceError
from .torch_internals.export import Sink, Source, export_joint


class Role(Enum):
    """The meaning of a value to a stage; its key is the name in the module or the position."""

    PARAMETER = auto()
    BUFFER = auto()
    INPUT = auto()  # of the tensors among arguments
    TANGENT = auto()  # the gradient of an output
    OUTPUT = auto()
    BUFFER_UPDATE = auto()
    INPUT_UPDATE = auto()
    PARAMETER_GRADIENT = auto()
    INPUT_GRADIENT = auto()


UPDATES = (Role.BUFFER_UPDATE, Role.INPUT_UPDATE)


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor that goes into a stage's graph, or comes out.

    ``key``: the name of a parameter or buffer, else a position.
    """

    role: Role
    key: str | int


@dataclass(frozen=True, slots=True)
class Joint:
    """A stage's forward and backward in one graph.

    ``inputs``: of each placeholder of ``graph`` what it is, in their order; ``outputs``: what the
    graph gives, a node each, in the order outputs and updates, then gradients. A gradient that is
    not there is none: nothing depends on the parameter. ``module`` holds the constants of the
    graph. Shapes and dtypes are in each node's ``meta["val"]``, a fake tensor.
    """

    graph: fx.Graph
    module: fx.GraphModule
    inputs: Mapping[fx.Node, Value]
    outputs: Sequence[tuple[fx.Node, Value]]

    def of(self, *roles: Role) -> list[tuple[fx.Node, Value]]:
        """The outputs of these roles."""
        return [(node, value) for node, value in self.outputs if value.role in roles]


Forward = Callable[[nn.Module, Sequence[Tensor]], Sequence[Tensor]]


def trace_joint(module: nn.Module, inputs: Sequence[Tensor], forward: Forward) -> Joint:
    """The joint graph of ``forward(module, inputs)``, a tuple of tensors.

    Nothing is computed: of ``inputs`` and the module's parameters shapes, dtypes and whether they
    require gradients are looked at. Raises TraceError, with the line of the model, where it cannot
    be a graph.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    own: dict[str, Tensor] = {**parameters, **buffers}
    places = _places(module)

    def function(*flat: Tensor) -> Sequence[Tensor]:
        held = {id(x): whole(x, part) for x, part in zip(own.values(), flat, strict=False)}
        called = _Called(module, {name: held[id(x)] for name, x in places.items()})
        return [as_output(x) for x in forward(called, flat[len(own) :])]

    arguments = [*(_leaf(x) for x in own.values()), *inputs]
    found = export_joint(function, arguments)
    values = [
        *(Value(Role.PARAMETER, name) for name in parameters),
        *(Value(Role.BUFFER, name) for name in buffers),
        *(Value(Role.INPUT, i) for i in range(len(inputs))),
    ]
    placeholders = (node for node in found.graph.nodes if node.op == "placeholder")
    pairs = zip(placeholders, found.sources, strict=True)
    ends = zip(found.results, found.sinks, strict=True)
    return simplify(
        Joint(
            found.graph,
            found.module,
            {node: _input(source, values) for node, source in pairs},
            [(node, _output(sink, values)) for node, sink in ends],
        )
    )


def _places(module: nn.Module) -> dict[str, Tensor]:
    """The places of all parameters and buffers, each once although its module has several names:
    one that is set twice would not be put back."""
    return {
        f"{path}.{name}" if path else name: tensor
        for path, part in module.named_modules()
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]
        if tensor is not None
    }


def _leaf(tensor: Tensor) -> Tensor:
    """The part of a DTensor that is here, as an argument of which there are gradients; any other
    tensor itself."""
    if not is_dtensor(tensor):
        return tensor
    return local(tensor).detach().requires_grad_(tensor.requires_grad)


class _Called(nn.Module):
    """The module, called with other tensors in the place of its own."""

    def __init__(self, module: nn.Module, held: dict[str, Tensor]) -> None:
        super().__init__()
        self._call = _Watched(module), {f"module.{name}": x for name, x in held.items()}

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return functional_call(*self._call, inputs, options, tie_weights=False)


class _Watched(nn.Module):
    """A module whose forward may change buffers in place, but must not put others there."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **options: Any) -> Any:
        before = dict(self.module.named_buffers())
        output = self.module(*inputs, **options)
        for name, buffer in self.module.named_buffers():
            if buffer is not before.get(name):
                raise TraceError(f"its forward puts another tensor in the place of buffer {name}")
        return output


def _input(source: Source, values: Sequence[Value]) -> Value:
    if source.tangent:
        return Value(Role.TANGENT, source.index)
    return values[source.index]


_NEW = {Role.BUFFER: Role.BUFFER_UPDATE, Role.INPUT: Role.INPUT_UPDATE}
_GRADIENTS = {Role.PARAMETER: Role.PARAMETER_GRADIENT, Role.INPUT: Role.INPUT_GRADIENT}


def _output(sink: Sink, values: Sequence[Value]) -> Value:
    if sink.of == "output":
        return Value(Role.OUTPUT, sink.index)
    value = values[sink.index]
    role = (_NEW if sink.of == "update" else _GRADIENTS).get(value.role)
    if role is None:
        raise TraceError(f"its forward changes {value.key}")
    return Value(role, value.key)
