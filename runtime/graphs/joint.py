"""The joint graph of a stage: its forward and backward as one graph of ATen calls.

::

    parameters, buffers, inputs  ──▶  forward  ──▶  outputs, updates of buffers
                       gradients of outputs  ──▶  backward  ──▶  gradients of parameters and inputs

Each input and output of the graph has a :class:`Value` that describes its meaning. For a DTensor
parameter, the graph takes the local part and returns its gradient with the same layout; the
collectives are in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from torch import fx


class Role(Enum):
    """The kind of an input or output of a joint graph."""

    PARAMETER = auto()
    BUFFER = auto()
    INPUT = auto()  # a tensor in the arguments
    TANGENT = auto()  # gradient of an output
    OUTPUT = auto()
    BUFFER_UPDATE = auto()
    PARAMETER_GRADIENT = auto()
    INPUT_GRADIENT = auto()


@dataclass(frozen=True, slots=True)
class Value:
    """The meaning of one input or output of a joint graph.

    ``key``: for a parameter or buffer, or for the gradient or the new value of either, the name of
    that parameter or buffer in the module; otherwise, the position of the stage's input or output.
    """

    role: Role
    key: str | int


@dataclass(frozen=True, slots=True)
class Joint:
    """A stage's forward and backward in one graph.

    ``inputs``: the placeholders of ``graph`` with their meaning, in order. ``outputs``: the nodes
    that the graph returns, with their meaning; parameters on which no output depends have no
    gradient among them. ``module`` contains the constants of the graph. ``meta["val"]`` of a node
    is a fake tensor with the shape and dtype of its value.
    """

    graph: fx.Graph
    module: fx.GraphModule
    inputs: Mapping[fx.Node, Value]
    outputs: Sequence[tuple[fx.Node, Value]]

    def of(self, role: Role) -> list[tuple[fx.Node, Value]]:
        """Returns the graph's outputs that have this role, as pairs of node and meaning."""
        return [(node, value) for node, value in self.outputs if value.role is role]
