"""Runs a stage's F, B and W as graphs, instead of its module and autograd.

A stage that cannot be traced runs as a module; :attr:`GraphRunner.refusal` is the reason. The loss
is not in the graph: autograd computes the gradient of the last stage's output, from which B starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..dtensors import arrived
from ..errors import ChangedInPlaceError
from ..executor.gradient_hooks import AccumulationHooks, hooked
from ..executor.offload import unpack
from ..executor.stage_runner import Cell, StageRunner, apart_from
from ..executor.weight_grad_deferral import run_backward
from ..rank.options import StagesAs
from ..tensors.trees import tensors
from .arguments import Kind, form_of, kind_of
from .functions import compiled_function, laid_out, python_function
from .kept_values import Kept, caught
from .module_state import ModuleState
from .stage_functions import Make, StageForward, StageFunctions
from .torch_internals.errors import TraceError

LIMIT = 16  # graphs per stage; with ever new shapes, tracing costs more than it saves


class GraphRunner(StageRunner):
    """Runs one stage as graphs; arguments not listed here are those of :class:`StageRunner`.

    ``weights_in_w``: whether the stage's weights are available in W. ``make``: creates a function
    from a piece of a graph. ``refusal``: the reason why the stage runs as a module, otherwise None.
    """

    def __init__(
        self,
        stage: int,
        module: nn.Module,
        *,
        weights_in_w: bool = True,
        make: Make = python_function,
        **given: Any,
    ) -> None:
        super().__init__(stage, module, **given)
        self._watching = self.memory.watching()
        self._make = make
        self._weights_in_w = weights_in_w
        self._graphs: dict[Kind, StageFunctions | None] = {}
        self._state: ModuleState | None = None
        self._hooks: AccumulationHooks | None = None
        self._anchor = torch.zeros((), requires_grad=True)
        self.refusal: str | None = _hooked(module)
        runs = self._run_forward, self._run_backward, self._run_weight
        self._run_as(*runs, counted=partial(self._run_forward, counted=True))

    def refresh(self, cells: Iterable[Cell]) -> None:
        """Discards the graphs if the module has changed since they were traced.

        Called before a step. ``cells``: the cells of the stage, whose graphs are discarded, too.
        """
        hooked = self.refusal is None and self._hooks
        if self._state is None or hooked or not self._state.holds():
            self._state = ModuleState(self.module)
            self._hooks = AccumulationHooks(self.module.parameters())
            self.refusal = self.refusal or _hooked(self.module)
            self._graphs.clear()
            for cell in cells:
                cell.graphs = None

    def prepare(
        self,
        cell: Cell,
        inputs: Sequence[Any],
        within: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Sets ``cell.graphs`` to the stage's functions for arguments like ``inputs``.

        Traces the module if there are none yet. If that is impossible, sets ``cell.graphs`` to
        False, and ``refusal`` to the reason. ``within`` returns a context in which the module can
        run.
        """
        kind = kind_of(inputs, cell.options)
        try:
            if kind not in self._graphs:
                with torch.enable_grad(), within():
                    self._graphs[kind] = self._traced(inputs, cell)
            found = self._graphs[kind]
            if found is not None:
                split = cell.queue is not None
                found.make(split=split, again=cell.recomputed)
                if split and not self._weights_in_w and (names := found.weights_in_w()):
                    raise TraceError(f"W computes with {names[0]}, which is sent on")
        except TraceError as error:
            self.refusal, self._graphs[kind] = str(error), None
        cell.graphs = self._graphs[kind] or False

    def _traced(self, inputs: Sequence[Any], cell: Cell) -> StageFunctions:
        if self.refusal is not None:
            raise TraceError(self.refusal)
        if len(self._graphs) >= LIMIT:
            raise TraceError(f"more than {LIMIT} different shapes")
        arguments = (tuple(inputs), dict(cell.options))
        forward = StageForward(self._around, form_of(arguments), self._last)
        found = StageFunctions.traced(self.module, tensors(arguments), forward, self._make)
        found.check(cell.interface, self.stage)
        return found

    def _found(self, cell: Cell) -> StageFunctions | None:
        if cell.graphs is None:
            self.prepare(cell, cell.inputs)
        return cell.graphs or None

    def _run_forward(self, cell: Cell, *, counted: bool = False) -> None:
        functions = self._found(cell)
        if functions is None:
            with self._watching if counted else nullcontext():
                self._forward(cell)
        elif not torch.is_grad_enabled():
            self._pass_on(cell, functions, functions.function("alone")(self._given(cell)))
        elif cell.state is not None:
            self._again(cell, functions)
        else:
            found = functions.function("forward")(self._given(cell))
            self._hold(cell, functions, found[functions.results :])
            del found[functions.results :]
            self._pass_on(cell, functions, found, counted=counted)

    def _given(self, cell: Cell) -> list[Tensor]:
        """Returns the tensors in a microbatch's arguments, with the strides that were traced."""
        if self.stage == 0:
            if not cell.options and all(type(x) is Tensor for x in cell.inputs):
                return [*cell.inputs]
            return tensors((cell.inputs, cell.options))
        return [*(x.contiguous() for x in cell.inputs), *tensors(cell.options.values())]

    def _again(self, cell: Cell, functions: StageFunctions) -> None:
        """Runs R: computes the ``saved`` values again and, on the last stage, the loss."""
        found = functions.function("again")(self._given(cell))
        self._hold(cell, functions, found[len(found) - len(functions.cut.saved) :])
        if self._last:
            self._judge(cell, functions, found[: functions.outputs], counted=True)

    def _hold(self, cell: Cell, functions: StageFunctions, saved: list[Tensor]) -> None:
        cell.kept = kept = Kept(functions, self.memory)
        if cell.offloaded is None:
            kept.hold(saved)
        else:
            kept.values = [cell.offloaded.pack(x) for x in saved]

    def _pass_on(
        self, cell: Cell, functions: StageFunctions, found: list[Tensor], *, counted: bool = False
    ) -> None:
        outputs, updates = found[: functions.outputs], found[functions.outputs :]
        if updates:
            functions.update(updates)
        if self._last:
            self._judge(cell, functions, outputs, counted=counted)
        else:
            received = self._given_back(cell)
            cell.output = tuple([apart_from(x, received) for x in outputs])

    def _judge(
        self, cell: Cell, functions: StageFunctions, outputs: list[Tensor], *, counted: bool
    ) -> None:
        shared = functions.kept_outputs if cell.kept is not None else []
        kept = [(outputs[i], outputs[i]._version) for i in shared]
        if torch.is_grad_enabled():
            assert isinstance(cell.kept, Kept)
            box = cell.kept.box
            outputs = [
                caught(x, self._anchor, box, i) if needs_grad else x
                for i, (x, needs_grad) in enumerate(zip(outputs, functions.needs_grad, strict=True))
            ]
        output = functions.forward_of.result(outputs)
        with self._watching if counted else nullcontext():
            self._finish(cell, output)
        for tensor, version in kept:
            if tensor._version != version:  # the loss has modified what B or W needs
                raise ChangedInPlaceError(tensor)

    def _run_backward(self, cell: Cell) -> None:
        kept = cell.kept
        if not isinstance(kept, Kept):
            self._backward(cell)
            return
        functions, dy = kept.functions, cell.dy
        if self._last:
            run_backward(cell.roots, cell.dy)
            box = kept.box
            dy = tuple([box[i] if i in box else functions.zeros(i) for i in functions.tangents])
            box.clear()
        found = self._gradients(cell, kept, functions, dy)
        if self.stage > 0:
            dx = dict(zip(functions.gradients_of, found, strict=True))
            cell.dx = tuple(
                [
                    apart_from(arrived(dx[i]), cell.dy) if i in dx else torch.zeros_like(x)
                    for i, x in enumerate(cell.inputs)
                    if x.requires_grad
                ]
            )
        cell.inputs, cell.roots, cell.dy = (), (), ()
        if cell.queue is None:
            cell.kept = None

    def _gradients(
        self, cell: Cell, kept: Kept, functions: StageFunctions, dy: Sequence[Tensor]
    ) -> list[Tensor]:
        """Runs B or BW from the outputs' gradients ``dy``; returns the gradients of the inputs.

        After B, ``kept`` holds the values that W needs.
        """
        values = kept.take()
        if cell.offloaded is not None:
            values = [unpack(x) for x in values]
        tangents = laid_out(map(arrived, dy), functions.tangent_strides)
        if cell.queue is None:
            values += tangents
            return functions.function("fused")(values)
        later = values[functions.cut.from_w :]
        values[functions.cut.to_b :] = tangents
        found = functions.function("backward")(values)
        count = len(functions.gradients_of)
        kept.hold([*later, *found[count:]])
        return found[:count]

    def _run_weight(self, cell: Cell) -> None:
        kept = cell.kept
        if not isinstance(kept, Kept):
            self._weight(cell)
            return
        kept.functions.function("weight")(kept.take())
        cell.kept = None


_MAKERS: dict[StagesAs, Make] = {"aten": python_function, "inductor": compiled_function}


def runner_kind(stages_as: StagesAs) -> Callable[..., StageRunner]:
    """Returns the function that creates a stage's runner for this value of ``stages_as``."""
    if stages_as == "eager":
        return StageRunner
    return partial(GraphRunner, make=_MAKERS[stages_as])


def _hooked(module: nn.Module) -> str | None:
    for name, parameter in module.named_parameters():
        if hooked(parameter):
            return f"{name} has a hook on its gradient"
    return None
