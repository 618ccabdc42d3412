"""What a step needs once its shapes are known: buffers and calls, made again only for other
shapes."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir

from ..executor.executor import Executor
from ..executor.stage_runner import StageRunner
from ..executor.tensor_routing import ActivationRouting, TensorRouting
from ..executor.weight_stashing import StashingRunner
from ..measure.activation_ledger import Memory
from ..optim.step_end import StepEnd
from ..rank.context import RankContext
from ..rank.options import Loss
from ..stages.store import StageStore
from ..stages.streamed_weights import StreamedStages
from ..tensors.microbatches import mapped
from ..tensors.skip_connections import Skips
from .shape_inference import Interfaces, ShapeInference
from .step_inputs import Cells


class StepBuilder:
    """Makes the executor of a step: in the first one, and where shapes may vary for each other
    ones.

    ``runners`` run the stages of this rank; ``interfaces`` are what stages hand on.
    """

    def __init__(self, context: RankContext, cells: Cells, step_end: StepEnd) -> None:
        problem = context.program.schedule.problem
        self._context, self._cells, self._step_end = context, cells, step_end
        self._last = problem.stages - 1
        self._loss = context.options.loss
        if self._loss is not None and context.options.param_dtype is not None:
            self._loss = loss_in_full(self._loss, context.store)
        self._skips = Skips(context.options.skips, problem.stages)
        self._shapes = ShapeInference(
            context.store, problem.owner, self._skips, context.transport, context.device
        )
        self.interfaces: Interfaces = []
        self._executor: Executor | None = None
        self.runners = {s: self.runner(s, context.memory) for s in context.role.run}

    def executor(self) -> Executor:
        """For what is in the cells; all ranks call it. Raises ShapeError, alike on all."""
        if self._executor is not None and not self._context.options.varying_shapes:
            return self._executor
        interfaces = self._shapes.interfaces(self._cells)
        if self._executor is not None and interfaces == self.interfaces:
            return self._executor
        self.interfaces = interfaces
        for (s, j), cell in self._cells.items():
            cell.interface = interfaces[s][j] if s < len(interfaces) else None
        self._context.transport.renew()
        self._executor = self._made(interfaces)
        return self._executor

    def ran(self) -> Executor:
        """That of the last step. Raises InputError where there was none."""
        if self._executor is None:
            raise InputError("trace: no step has run yet")
        return self._executor

    def _made(self, interfaces: Interfaces) -> Executor:
        context, step_end = self._context, self._step_end
        routing: dict[ir.TensorKind, TensorRouting] = dict.fromkeys(
            ir.TensorKind, ActivationRouting(self._cells, interfaces, context.device)
        )
        if isinstance(context.store, StreamedStages):
            routing[ir.TensorKind.WEIGHT] = routing[ir.TensorKind.GRADIENT] = context.store
        return Executor(
            context.program,
            context.transport,
            cells=self._cells,
            runners=self.runners,
            routing=routing,
            memory=context.memory,
            device=context.device,
            reduce=step_end.reduce,
            average=step_end.average,
            step=step_end.step,
            check_norm=step_end.check_norm,
            validate=step_end.validate,
            restore_snapshot=step_end.restore_snapshot,
            pace=context.options.pace,
        )

    def runner(self, stage: int, memory: Memory, *, stashing: bool = True) -> StageRunner:
        """One that counts in ``memory``; not ``stashing``, one that never stashes weights."""
        context = self._context
        stash = self._step_end.stashes.get(stage) if stashing else None
        return (StageRunner if stash is None else StashingRunner)(
            stage,
            context.store.module(stage) if stash is None else stash,
            parameters=context.store.parameters(stage) if stash is None else None,
            using=partial(context.store.using, stage),
            memory=memory,
            last=stage == self._last,
            loss=self._loss,
            seed=self._step_end.seed,
            skips=self._skips if self._skips.passes(stage) else None,
        )


def loss_in_full(loss: Loss, store: StageStore) -> Loss:
    """The loss of an output in the modules' own dtype, where they compute in another."""
    assert isinstance(store, StreamedStages)
    master = store.precision.master

    def computed(output: Any, target: Any) -> Tensor:
        return loss(mapped(lambda x: x.to(master) if x.is_floating_point() else x, output), target)

    return computed
