"""What a step needs once its shapes are known: buffers and calls, made again only for other
shapes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir

from ..executor.executor import Executor
from ..executor.losses import Judge, judge_of
from ..executor.stage_runner import StageRunner
from ..executor.tensor_routing import ActivationRouting, TensorRouting
from ..executor.weight_stashing import Stash, StashingRunner
from ..optim.step_end import StepEnd
from ..rank.context import RankContext
from ..stages.streamed_weights import StreamedStages
from ..tensors.skip_connections import Skips
from .shape_inference import Interfaces, ShapeInference
from .step_inputs import Cells


class StepBuilder:
    """Makes the executor of a step: in the first one, and where shapes may vary for each other
    ones.

    ``runners`` run the stages of this rank.
    """

    def __init__(self, context: RankContext, cells: Cells, step_end: StepEnd) -> None:
        problem = context.program.schedule.problem
        self._context, self._cells, self._step_end = context, cells, step_end
        skips = Skips(context.options.skips, problem.stages)
        self._shapes = ShapeInference(
            context.store, problem.owner, skips, context.transport, context.device
        )
        self._interfaces: Interfaces = []
        self._executor: Executor | None = None
        self.runners = {
            s: make_runner(s, context, skips, step_end.seed, stash=step_end.stashes.get(s))
            for s in context.role.run
        }

    def executor(self) -> Executor:
        """For what is in the cells; all ranks call it. Raises ShapeError, alike on all."""
        if self._executor is not None and not self._context.options.varying_shapes:
            return self._executor
        interfaces = self._shapes.interfaces(self._cells)
        if self._executor is not None and interfaces == self._interfaces:
            return self._executor
        self._interfaces = interfaces
        for (s, j), cell in self._cells.items():
            cell.interface = interfaces[s][j] if s < len(interfaces) else None
        self._context.transport.renew()
        self._executor = make_executor(
            self._context, self._step_end, self._cells, self.runners, interfaces
        )
        return self._executor

    def ran(self) -> Executor:
        """That of the last step. Raises InputError where there was none."""
        if self._executor is None:
            raise InputError("trace: no step has run yet")
        return self._executor


def make_runner(
    stage: int,
    context: RankContext,
    skips: Skips,
    seed: Tensor,
    *,
    stash: Stash | None = None,
    kind: type[StageRunner] = StageRunner,
) -> StageRunner:
    """What runs a stage of this rank, with the weights of its ``stash`` where there is one."""
    store = context.store
    return (kind if stash is None else StashingRunner)(
        stage,
        store.module(stage) if stash is None else stash,
        parameters=store.parameters(stage) if stash is None else None,
        using=partial(store.using, stage),
        memory=context.memory,
        last=stage == context.program.schedule.problem.stages - 1,
        loss=make_judge(context),
        seed=seed,
        skips=skips if skips.passes(stage) else None,
    )


def make_judge(context: RankContext) -> Judge | None:
    """What computes losses, of outputs in the modules' own dtype where they compute in another."""
    options, store = context.options, context.store
    if options.loss is None:
        return None
    if options.param_dtype is None:
        return judge_of(options.loss, None)
    assert isinstance(store, StreamedStages)
    return judge_of(options.loss, store.precision.master)


def make_executor(
    context: RankContext,
    step_end: StepEnd,
    cells: Cells,
    runners: Mapping[int, StageRunner],
    interfaces: Interfaces,
) -> Executor:
    """Buffers and calls of the context's program, for what stages hand on."""
    routing: dict[ir.TensorKind, TensorRouting] = dict.fromkeys(
        ir.TensorKind, ActivationRouting(cells, interfaces, context.device)
    )
    if isinstance(context.store, StreamedStages):
        routing[ir.TensorKind.WEIGHT] = routing[ir.TensorKind.GRADIENT] = context.store
    return Executor(
        context.program,
        context.transport,
        cells=cells,
        runners=runners,
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
