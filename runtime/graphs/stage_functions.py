"""The functions of one stage for arguments of one kind: F, B, W, BW and R without autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..dtensors import is_dtensor, local, whole
from ..executor.outputs import as_tuple
from ..tensors.packed_message import Spec
from ..tensors.rng_state import generators_of
from ..tensors.skip_connections import Skips
from ..tensors.stage_interface import StageInterface
from .accumulation import AddGradient, fresh
from .arguments import Parts
from .cut import HELD, Cut, Piece, cut
from .functions import Function
from .joint import UPDATES, Joint, Role, trace_joint
from .liveness import most_within_b, root_of
from .module_state import unchanged
from .rewrites import without_tangents
from .torch_internals.aten import check_constants, value_of
from .torch_internals.errors import TraceError
from .torch_internals.random_numbers import unseeded

Make = Callable[[Piece, Any, Mapping[fx.Node, Sequence[AddGradient]], Sequence[fx.Node]], Function]


class StageForward:
    """The computation of a stage's graph: of the tensors among its arguments those that it hands
    on, or of the last stage those in its :meth:`result`.

    ``loss``: of a model that computes its loss, the function that finds it in its output; nothing
    else of that has a gradient.
    """

    def __init__(
        self,
        stage: int,
        arguments: Parts,
        skips: Skips | None,
        *,
        last: bool,
        loss: Callable[[Any], Tensor] | None,
    ) -> None:
        self._stage, self._arguments, self._skips = stage, arguments, skips
        self.last, self._loss = last, loss
        self._parts: Parts | None = None
        self._wholes: Sequence[Tensor] = ()
        self._alone = False  # it is one tensor

    def __call__(self, module: nn.Module, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        inputs, options = self._arguments.with_tensors(tensors)
        given = inputs if self._skips is None else self._skips.arguments(self._stage, inputs)
        output = module(*given, **options)
        if not self.last:
            outputs = as_tuple(output)
            if self._skips is not None:
                outputs = self._skips.outputs(self._stage, outputs, inputs)
            return [x.contiguous() for x in outputs]  # as they are sent
        self._parts, found = Parts.of(output)
        self._wholes = [x.detach() for x in found]
        self._alone = self._parts.tree.is_leaf() and not any(map(is_dtensor, found))
        if self._loss is not None:
            loss = self._loss(output)
            return [_part(x if x is loss else x.detach()) for x in found]
        return [_part(x) for x in found]

    def result(self, outputs: Sequence[Tensor]) -> Any:
        """The last stage's output as its module gives it, of the tensors that the graph gives."""
        assert self._parts is not None
        if self._alone:
            return outputs[0]
        pairs = zip(self._wholes, outputs, strict=True)
        return self._parts.with_tensors([whole(like, x) for like, x in pairs])


def _part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_dtensor(tensor) else tensor


class StageFunctions:
    """The pieces of a stage as functions; made when they are first called. Each empties the list of
    tensors that it is given.

    ``outputs``: how many of F's ``results`` are outputs, the others are updates; ``needs_grad``: of
    each output whether B is given its gradient, ``tangents`` the places of those that have one;
    ``gradients_of``: the inputs whose gradients B gives; ``strides``, ``tangent_strides``: of the
    inputs and of the gradients that B is given.
    """

    def __init__(
        self,
        module: nn.Module,
        found: Cut,
        strides: Sequence[Sequence[int]],
        forward: StageForward,
        make: Make,
    ) -> None:
        self.forward_of, self.cut, self.strides = forward, found, strides
        self._make, self._module = make, module
        self._apart: dict[frozenset[int], StageFunctions] = {}
        self.picked: Sequence[int] = ()
        joint = found.joint
        self._tensors: dict[Any, Any] = {
            **dict(module.named_parameters()),
            **dict(module.named_buffers()),
        }
        self._held = {n: self._tensors[v.key] for n, v in joint.inputs.items() if v.role in HELD}
        self.tangent_strides = [value_of(node).stride() for node in self.cut.tangents]
        self.outputs = len(joint.of(Role.OUTPUT))
        tangents = {v.key for v in joint.inputs.values() if v.role is Role.TANGENT}
        self.needs_grad = tuple(i in tangents for i in range(self.outputs))
        self.tangents = [i for i in range(self.outputs) if i in tangents]
        updates = joint.of(*UPDATES)
        self._updated = [v for _, v in updates]
        self.results = len(self.cut.results)
        self._input_gradients = {v.key: n for n, v in joint.of(Role.INPUT_GRADIENT)}
        self.gradients_of = [int(k) for k in self._input_gradients]

    @classmethod
    def traced(
        cls, module: nn.Module, tensors: Sequence[Tensor], forward: StageForward, make: Make
    ) -> StageFunctions:
        """The functions of a module for such tensors. Raises TraceError."""
        seeded = unseeded(generators_of(module))
        with unchanged(module) as state, seeded:
            joint = trace_joint(module, tensors, forward)
            known = [*state.constants, *_fixed_tensors(module)]
            check_constants(joint.graph, joint.module, known)
        for node, value in joint.of(Role.PARAMETER_GRADIENT):
            if value_of(node).layout is not torch.strided:
                raise TraceError(f"the gradient of {value.key} is sparse")
        return cls(module, cut(joint), [x.stride() for x in tensors], forward, make)

    def of_outputs(self, used: frozenset[int]) -> StageFunctions:
        """The functions where only outputs at these places have a gradient. F is the same; of what
        that saves these take those at the places ``picked``."""
        if used not in self._apart:
            joint, origins = without_tangents(self.joint, used)
            found = cut(joint, again=True)
            apart = StageFunctions(self._module, found, self.strides, self.forward_of, self._make)
            places = {node: i for i, node in enumerate(self.cut.saved)}
            apart.picked = [places[origins[node]] for node in found.saved]
            self._apart[used] = apart
        return self._apart[used]

    def zeros(self, output: int) -> Tensor:
        """The gradient of an output that the loss does not depend on."""
        like = value_of(self.cut.tangents[self.tangents.index(output)])
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)

    @property
    def joint(self) -> Joint:
        """The graph that all this is cut out of."""
        return self.cut.joint

    def update(self, given: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Gives buffers, and of the tensors that were ``given`` those that F changes, their new
        values."""
        for target, value in zip(self._updated, values, strict=True):
            buffer = target.role is Role.BUFFER_UPDATE
            old = self._tensors[target.key] if buffer else given[int(target.key)]
            with torch.no_grad():
                old.copy_(value)

    @cached_property
    def more_in_b(self) -> int:
        """Bytes that a microbatch holds at most within B, beyond what it held before."""
        return most_within_b(self.cut)

    @cached_property
    def kept_outputs(self) -> list[int]:
        """The places of the outputs that lie in the memory of what is saved."""
        saved = {root_of(node) for node in self.cut.saved}
        outputs = self.joint.of(Role.OUTPUT)
        return [i for i, (node, _) in enumerate(outputs) if root_of(node) in saved]

    @property
    def in_b(self) -> list[str]:
        """The names of the parameters whose gradients come with B."""
        early = set(self.cut.by_b)
        found = self.joint.of(Role.PARAMETER_GRADIENT)
        return [str(value.key) for node, value in found if node in early]

    @property
    def weights_in_w(self) -> list[str]:
        """The names of the parameters that W computes with."""
        roles = map(self.joint.inputs.get, self.cut.weight.inputs)
        return [str(v.key) for v in roles if v is not None and v.role is Role.PARAMETER]

    @property
    def trained(self) -> list[str]:
        """The names of the parameters that get a gradient."""
        return [str(value.key) for _, value in self.joint.of(Role.PARAMETER_GRADIENT)]

    def check(self, interface: StageInterface | None, stage: int) -> None:
        """Raises ShapeError where the stage hands on other tensors than it did when tried."""
        if interface is None:
            return
        values = [value_of(node) for node, _ in self.joint.of(Role.OUTPUT)]
        found = StageInterface(tuple(map(Spec.of, values)), self.needs_grad)
        if found != interface:
            raise interface.unlike(stage, found)

    def make(self, *, split: bool, again: bool) -> None:
        """Makes the functions of a microbatch, before the step that calls them: B and W where they
        are ``split``, else BW; where F runs ``again``, R."""
        for name in ["backward", "weight"] if split else ["fused"]:
            getattr(self, name)
        _ = (self.alone, self.again) if again else self.forward

    @cached_property
    def forward(self) -> Function:
        """F: of the tensors of a microbatch, results and what is saved."""
        return self._function(self.cut.forward, self.cut.forward.outputs)

    @cached_property
    def alone(self) -> Function:
        """F that saves nothing: results."""
        return self._function(self.cut.alone, self.cut.alone.outputs)

    @cached_property
    def again(self) -> Function:
        """R: of the last stage its outputs, for its loss, and what is saved."""
        if self.forward_of.last:
            return self.forward
        return self._function(self.cut.again, self.cut.again.outputs)

    @cached_property
    def backward(self) -> Function:
        """B: of what is saved for it and the tangents, the gradients of inputs and what waits for
        W."""
        return self._function(
            self.cut.backward, [*self._input_gradients.values(), *self.cut.waiting]
        )

    @cached_property
    def weight(self) -> Function:
        """W: of what is saved for it and waits; gives nothing."""
        return self._function(self.cut.weight, [])

    @cached_property
    def fused(self) -> Function:
        """BW: of what is saved and the tangents, the gradients of inputs."""
        return self._function(self.cut.fused, [*self._input_gradients.values()])

    def _function(self, piece: Piece, returned: Sequence[fx.Node]) -> Function:
        made = self._make(piece, self.joint.module, self._takes(piece, returned), returned)
        held = [self._held[n] for n in piece.inputs if n in self._held]
        apart = any(map(is_dtensor, held))  # of which the part here may be another in the next step

        def call(tensors: list[Tensor]) -> list[Tensor]:
            arguments = [*(map(local, held) if apart else held), *tensors]
            tensors.clear()
            return made(arguments)

        return call

    def _takes(self, piece: Piece, returned: Sequence[fx.Node]) -> dict[fx.Node, list[AddGradient]]:
        given, calls = set(piece.outputs), set(piece.calls)
        takes: dict[fx.Node, list[AddGradient]] = {}
        gradients = [x for x in self.joint.of(Role.PARAMETER_GRADIENT) if x[0] in given]
        for node, value in gradients:
            parameter = self._tensors[value.key]
            others = [*returned, *(n for n, v in gradients if v is not value)]
            take = AddGradient(parameter, keeps=fresh(node, parameter, calls, others))
            takes.setdefault(node, []).append(take)
        return takes


def _fixed_tensors(module: nn.Module) -> list[Tensor]:
    """The tensors of which parts of a module say, by ``fixed_tensors()``, that they never change:
    such as masks and rotary tables, one for each shape."""
    asked = (getattr(part, "fixed_tensors", None) for part in module.modules())
    return [tensor for tensors in asked if tensors is not None for tensor in tensors()]
