"""The functions that run F, B, W, BW and R of one stage without autograd, for given shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..dtensors import is_dtensor, local, whole
from ..executor.outputs import as_tuple
from ..tensors.packed_message import Spec
from ..tensors.stage_interface import StageInterface
from ..tensors.trees import tensors as tensors_of
from .arguments import PLACE, form_of, with_tensors
from .cut import HELD, Cut, Piece, cut
from .functions import Adds, Function
from .joint import Role
from .module_state import unchanged
from .torch_internals.aten import below_autograd, check_constants, root_of, value_of
from .torch_internals.errors import TraceError
from .torch_internals.export import trace_joint

Make = Callable[[Piece, fx.GraphModule, Adds], Function]  # e.g. python_function


@dataclass
class StageForward:
    """The function that is traced: maps the tensors in a stage's arguments to those in its output.

    ``around`` returns the module with skip connections (:meth:`Skips.around`). ``form``: the form
    of the pair of positional and keyword arguments (:func:`.arguments.form_of`). ``last``: whether
    it is the last stage, for which :meth:`result` puts the tensors back into the form of the
    stage's output.
    """

    around: Callable[[nn.Module], Callable[..., Any]]
    form: Any
    last: bool
    _result: Any = None
    _wholes: Sequence[Tensor] = ()

    def __call__(self, module: nn.Module, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        inputs, options = with_tensors(self.form, tensors)
        output = self.around(module)(*inputs, **options)
        if not self.last:
            return [x.contiguous() for x in as_tuple(output)]  # the layout in which they are sent
        self._result, found = form_of(output), tensors_of([output])
        self._wholes = [x.detach() for x in found]
        return [x.to_local() if is_dtensor(x) else x for x in found]

    def result(self, outputs: Sequence[Tensor]) -> Any:
        """Returns the output that the last stage's module would return, given the tensors in it.

        ``outputs``: these tensors, or the local parts of DTensors.
        """
        pairs = zip(self._wholes, outputs, strict=True)
        found = [whole(like, x) for like, x in pairs]
        return found[0] if self._result is PLACE else with_tensors(self._result, found)


class StageFunctions:
    """The pieces of a stage's cut as functions, which are created on first use.

    Each function empties the list of tensors that it is given. ``outputs``: the number of F's
    outputs, which are its first results. ``results``: that number plus the number of new buffer
    values, which F returns next. ``needs_grad``: for each output, whether B takes its gradient.
    ``tangents``: the positions of the outputs for which it does. ``tangent_strides``: the strides
    of their gradients. ``gradients_of``: the positions of the inputs whose gradients B returns.
    """

    def __init__(self, module: nn.Module, found: Cut, forward: StageForward, make: Make) -> None:
        self.forward_of, self.cut = forward, found
        self._module, self._make = module, make
        self._made: dict[Piece, Function] = {}
        self.joint = joint = found.joint
        self.tangent_strides = [value_of(node).stride() for node in found.tangents]
        self.outputs = len(joint.of(Role.OUTPUT))
        self.results = self.outputs + len(joint.of(Role.BUFFER_UPDATE))
        self.tangents = [int(joint.inputs[node].key) for node in found.tangents]
        self.needs_grad = tuple(i in self.tangents for i in range(self.outputs))
        self.gradients_of = [int(value.key) for _, value in joint.of(Role.INPUT_GRADIENT)]

    @classmethod
    def traced(
        cls, module: nn.Module, tensors: Sequence[Tensor], forward: StageForward, make: Make
    ) -> StageFunctions:
        """Returns the functions of a module, which is traced without computing anything.

        ``tensors``: tensors in the stage's arguments, of which only shape, strides, dtype and
        ``requires_grad`` matter. ``forward``: the function that is traced. Raises TraceError if the
        module cannot be traced.
        """
        with unchanged(module) as state:
            joint = trace_joint(module, tensors, forward)
            known = [*state.constants, *_fixed_tensors(module)]
            check_constants(joint.graph, joint.module, known)
        for node, value in joint.of(Role.PARAMETER_GRADIENT):
            if value_of(node).layout is not torch.strided:
                raise TraceError(f"the gradient of {value.key} is sparse")
        return cls(module, cut(joint), forward, make)

    def zeros(self, output: int) -> Tensor:
        """Returns zeros, as the gradient of the output at position ``output``.

        They are used for an output on which the loss does not depend.
        """
        like = value_of(self.cut.tangents[self.tangents.index(output)])
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)

    @torch.no_grad()
    def update(self, values: Sequence[Tensor]) -> None:
        """Copies ``values`` into the buffers that F updates.

        F returns these values in the order of the buffers.
        """
        for (_, buffer), value in zip(self.joint.of(Role.BUFFER_UPDATE), values, strict=True):
            self._module.get_buffer(str(buffer.key)).copy_(value)

    @cached_property
    def kept_outputs(self) -> list[int]:
        """The positions of the outputs that share memory with values that F saves for B or W."""
        saved = {root_of(node) for node in self.cut.saved}
        outputs = self.joint.of(Role.OUTPUT)
        return [i for i, (node, _) in enumerate(outputs) if root_of(node) in saved]

    def weights_in_w(self) -> list[str]:
        """Returns the names of the parameters that W uses."""
        roles = map(self.joint.inputs.get, self.cut.pieces["weight"].inputs)
        return [str(v.key) for v in roles if v is not None and v.role is Role.PARAMETER]

    def check(self, interface: StageInterface | None, stage: int) -> None:
        """Raises ShapeError if F's outputs differ from ``interface``, which shape inference found.

        ``interface``: None for the last stage, which is not checked. ``stage``: the stage's index,
        for the message.
        """
        if interface is None:
            return
        values = [value_of(node) for node, _ in self.joint.of(Role.OUTPUT)]
        found = StageInterface(tuple(map(Spec.of, values)), self.needs_grad)
        if found != interface:
            raise interface.unlike(stage, found)

    def make(self, *, split: bool, again: bool) -> None:
        """Creates the functions that a microbatch needs, before its step.

        ``split``: whether the microbatch has B and W instead of BW. ``again``: whether it is
        recomputed, so that it needs F without saved values, and R.
        """
        backward = ("backward", "weight") if split else ("fused",)
        for name in (*backward, *(("alone", "again") if again else ("forward",))):
            self.function(name)

    def function(self, name: str) -> Function:
        """Returns the function of the piece with this name in ``Cut.pieces``.

        But for R (``again``) on the last stage, returns F: to recompute the loss, the outputs are
        needed as well.
        """
        if name == "again" and self.forward_of.last:
            name = "forward"
        piece = self.cut.pieces[name]
        if piece not in self._made:
            self._made[piece] = self._function(piece)
        return self._made[piece]

    def _function(self, piece: Piece) -> Function:
        made = self._make(piece, self.joint.module, self._adds(piece))
        values = [self.joint.inputs[n] for n in piece.inputs if n in self.joint.inputs]
        places = [_place(self._module, str(v.key)) for v in values if v.role in HELD]
        apart = any(is_dtensor(held[name]) for held, name in places)

        def call(tensors: list[Tensor]) -> list[Tensor]:
            own = [held[name] for held, name in places]  # in R, buffers are those from before F
            arguments = [*(map(local, own) if apart else own), *tensors]
            tensors.clear()
            with below_autograd():
                return made(arguments)

        return call

    def _adds(self, piece: Piece) -> dict[fx.Node, list[nn.Parameter]]:
        adds: dict[fx.Node, list[nn.Parameter]] = {}
        for node, value in self.joint.of(Role.PARAMETER_GRADIENT):
            if node in piece.gradients:
                parameter = self._module.get_parameter(str(value.key))
                adds.setdefault(node, []).append(parameter)
        return adds


def _place(module: nn.Module, key: str) -> tuple[dict[str, Any], str]:
    """Returns the dict that holds a parameter or buffer of the module, and its key there."""
    path, _, name = key.rpartition(".")
    part = module.get_submodule(path)
    return (part._buffers if name in part._buffers else part._parameters), name


def _fixed_tensors(module: nn.Module) -> list[Tensor]:
    """Returns the tensors that modules declare as constant by a method ``fixed_tensors()``.

    Examples are masks and rotary tables, which are computed once for each shape of the input.
    """
    asked = (getattr(part, "fixed_tensors", None) for part in module.modules())
    return [tensor for tensors in asked if tensors is not None for tensor in tensors()]
