"""Training steps on one rank: its program's calls on a step's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.schedule import Updates

from ...device import Device
from ...errors import ExecutionError
from ...executor.executor import Executor
from ...executor.offload import Host, OffloadedActivations
from ...executor.stage_runner import Cell, StageRunner
from ...executor.tensor_routing import ActivationRouting, TensorRouting
from ...executor.weight_grad_deferral import WeightQueue
from ...optim.step_end import StepEnd
from ...rank.context import RankContext
from ...stages.streamed_weights import StreamedStages
from .shape_inference import Interfaces, ShapeInference
from .stage_runners import StageRunners
from .step_io import Cells, Results, StepData, StepInputs, put_targets


class TrainingStep:
    """Runs the training steps of one rank by one program; all ranks make theirs and call it alike.

    ``cells`` have what a step computes on, one for each stage and microbatch of this rank, and
    ``runners`` compute it; ``interfaces`` are what stages hand on.
    """

    def __init__(self, context: RankContext, step_end: StepEnd) -> None:
        problem, options = context.program.schedule.problem, context.options
        self._context, self._step_end = context, step_end
        self.cells: Cells = make_cells(context)
        self.runners = StageRunners(context, step_end)
        self._shapes = ShapeInference(
            context.store, problem.owner, self.runners.skips, context.transport, context.device
        )
        self.interfaces: Interfaces = []
        self._executor: Executor | None = None
        self._inputs = StepInputs(
            self.cells, problem.microbatches, options.param_dtype, varying=options.varying_shapes
        )
        self._modules = [context.store.module(s) for s in context.store.stages]
        self._starts = any(stage == 0 for stage, _ in self.cells)
        self._last = {j: cell for (s, j), cell in self.cells.items() if s == problem.stages - 1}

    def follow(self, other: TrainingStep) -> None:
        """Knows the shapes that stages of another program, the same stages, were seen to give."""
        self._shapes.known = other._shapes.known

    def put(self, data: StepData, *, updates: bool = True) -> None:
        """Fills the cells. Raises InputError for what is missing, or where the optimizers cannot be
        left out of a step, ShapeError for what does not fit."""
        program, rank = self._context.program, self._context.role.rank
        if not updates and program.schedule.updates is not Updates.ITERATION:
            raise InputError(
                "update: expected True with a program that steps after each microbatch, got False"
            )
        if self._starts:
            data.check_inputs(rank)
        self._inputs.put(data.inputs if self._starts else (), data.options)
        if self._last:
            count = program.schedule.problem.microbatches
            put_targets(self._last, data, count, self._context.options.loss, rank)

    def run(self, data: StepData, *, keep: bool, updates: bool) -> Results:
        """Runs the step on ``data``, which was put; keeps outputs and steps optimizers as asked.

        Raises ShapeError where shapes do not fit, ExecutionError where an instruction fails.
        """
        self.gather()
        executor, store = self.executor(), self._context.store
        for runner in self.runners.of.values():
            runner.keep_outputs = keep
        try:
            self._step_end.begin(partial(self._refill, data), updates=updates)
            store.begin()
            self._context.memory.start(self._modules)
            executor.run()
            self._step_end.over()
        except Exception:
            self._step_end.give_up()
            raise
        self.runners.settle()
        results = Results()
        results.take(self._last.values())
        return results

    def gather(self) -> None:
        """Gathers the weights of sharded stages. Raises ExecutionError where that fails."""
        try:
            self._context.store.gather()
        except ConnectionError as error:
            raise ExecutionError(f"rank {self._context.role.rank}: {error}") from error

    def inferred(self) -> Interfaces:
        """What stages hand on of the cells' contents; all ranks call it, unless a step has run and
        shapes stay. Raises ShapeError, alike on all."""
        if self._executor is None or self._context.options.varying_shapes:
            return self._shapes.interfaces(self.cells)
        return self.interfaces

    def executor(self) -> Executor:
        """The executor for the cells' contents, made in the first step, and where shapes may vary
        for each other ones; all ranks call it. Raises ShapeError, alike on all."""
        self.runners.refresh(self.cells)
        if self._executor is not None and not self._context.options.varying_shapes:
            return self._executor
        interfaces = self._shapes.interfaces(self.cells)
        if self._executor is not None and interfaces == self.interfaces:
            self.runners.trace(self.cells, interfaces)
            return self._executor
        self.interfaces = interfaces
        for (s, j), cell in self.cells.items():
            cell.interface = interfaces[s][j] if s < len(interfaces) else None
        self.runners.trace(self.cells, interfaces)
        if self._context.buffers is not None:
            Device(self._context.device).synchronize()  # what was received there has been read
        self._context.transport.renew()
        self._executor = make_executor(
            self._context, self._step_end, self.cells, self.runners.of, interfaces
        )
        return self._executor

    def ran(self) -> Executor:
        """The executor of the last step. Raises InputError where there was none."""
        if self._executor is None:
            raise InputError("trace: no step has run yet")
        return self._executor

    def clear(self) -> None:
        """Drops all that a step which is to be run again has left so far."""
        for cell in self.cells.values():
            self._context.memory.release(cell.held)
            cell.clear()

    def _refill(self, data: StepData) -> None:
        """Fills the cells again, before the ops since the step's begin are run again."""
        self.clear()
        self.put(data)
        self._context.store.gather()
        self._context.store.begin()


def make_cells(context: RankContext) -> dict[tuple[int, int], Cell]:
    """The cells of the rank, one for each (stage, microbatch); those with a W get a queue."""
    memory, host = context.memory, Host(context.device)
    pairs: dict[tuple[int, int], set[OpKind]] = {}
    for item in context.program.instructions[context.role.rank]:
        if isinstance(item, ir.Compute):
            pairs.setdefault((item.op.stage, item.op.microbatch), set()).add(item.op.kind)
    return {
        pair: Cell(
            WeightQueue(memory) if OpKind.W in kinds else None,
            recomputed=OpKind.R in kinds,
            offloaded=OffloadedActivations(host, memory) if OpKind.O in kinds else None,
        )
        for pair, kinds in sorted(pairs.items())
    }


def make_executor(
    context: RankContext,
    step_end: StepEnd,
    cells: Cells,
    runners: Mapping[int, StageRunner],
    interfaces: Interfaces,
    *,
    label: str = "",
) -> Executor:
    """Buffers and calls of the context's program, for what stages hand on; ``label``: before its
    texts in the profiler's trace."""
    routing: dict[ir.TensorKind, TensorRouting] = dict.fromkeys(
        ir.TensorKind, ActivationRouting(cells, interfaces, context.device)
    )
    if isinstance(context.store, StreamedStages):
        routing[ir.TensorKind.WEIGHT] = routing[ir.TensorKind.GRADIENT] = context.store
    return Executor(
        context, cells=cells, runners=runners, routing=routing, step_end=step_end, label=label
    )
