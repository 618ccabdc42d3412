"""A stage's forward and its backward as one graph of ATen calls.

::

    parameters, buffers, inputs  ──▶  forward  ──▶  outputs, updates of buffers
                       gradients of outputs  ──▶  backward  ──▶  gradients of parameters and inputs

Every value that enters or leaves the graph has a :class:`Value`, which says what it is to the
stage. Of a parameter that is a DTensor, this process's part enters, and its gradient leaves as the
part that is laid out as the parameter's; the collectives are in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from torch import fx


class Role(Enum):
    """The meaning of a value to a stage; its key is the name in the module or the position."""

    PARAMETER = auto()
    BUFFER = auto()
    INPUT = auto()  # of the tensors among arguments
    TANGENT = auto()  # the gradient of an output
    OUTPUT = auto()
    BUFFER_UPDATE = auto()
    PARAMETER_GRADIENT = auto()
    INPUT_GRADIENT = auto()


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor that enters or leaves a stage's graph.

    ``key``: the name of a parameter or buffer, else a position.
    """

    role: Role
    key: str | int


@dataclass(frozen=True, slots=True)
class Joint:
    """A stage's forward and backward in one graph.

    ``inputs``: each placeholder of ``graph`` and what it is, in their order; ``outputs``: what the
    graph returns, a node each. If nothing depends on a parameter, its gradient is missing.
    ``module`` holds the constants of the graph. Shapes and dtypes are in each node's
    ``meta["val"]``, a fake tensor.
    """

    graph: fx.Graph
    module: fx.GraphModule
    inputs: Mapping[fx.Node, Value]
    outputs: Sequence[tuple[fx.Node, Value]]

    def of(self, role: Role) -> list[tuple[fx.Node, Value]]:
        """The outputs of this role."""
        return [(node, value) for node, value in self.outputs if value.role is role]
