"""Training steps on one rank: its program's calls on a step's inputs, or their CUDA graph."""

from __future__ import annotations

from functools import partial

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.schedule import Updates

from ...errors import ExecutionError
from ...executor.cuda_graph import GraphedSteps, make_recording
from ...measure.op_timer import Call
from ...optim.step_end import StepEnd
from ...rank.checks import check_graph
from ...rank.context import RankContext
from ...stages.fsdp import ShardedStages
from .step_builder import StepBuilder
from .step_inputs import Cells
from .step_io import StepData, StepIO, make_cells


class TrainingStep:
    """Runs the training steps of one rank; all ranks make theirs and call it alike.

    ``cells`` have what a step computes on, ``io`` fills and empties them, ``builder`` makes the
    calls. Raises InputError where a step is to be a CUDA graph and cannot be one.
    """

    def __init__(self, context: RankContext, step_end: StepEnd) -> None:
        self._context, self._step_end = context, step_end
        self.cells: Cells = make_cells(context)
        self._graph = self._make_graph() if context.options.cuda_graph else None
        self.io = StepIO(context, self.cells)
        self.builder = StepBuilder(context, self.cells, step_end)

    def _make_graph(self) -> GraphedSteps:
        context = self._context
        check_graph(
            context.program,
            context.device,
            context.options,
            self._step_end.optimizers,
            sharded=isinstance(context.store, ShardedStages),
        )
        recording = make_recording(context.transport, context.device)
        return GraphedSteps(recording, context.transport, self.cells.values())

    def put(self, data: StepData, *, updates: bool) -> None:
        """Fills the cells. Raises InputError or ShapeError for what does not fit, InputError where
        the optimizers cannot be left out of a step."""
        if not updates:
            self._check_left_out()
        self.io.put(data)

    def run(self, data: StepData, *, keep: bool, updates: bool) -> None:
        """Runs the step on ``data``, which was put; keeps outputs and steps optimizers as asked.

        Raises ShapeError where shapes do not fit, ExecutionError where an instruction fails.
        """
        self.gather()
        executor = self.builder.executor()
        for runner in self.builder.runners.values():
            runner.keep_outputs = keep
        refill = partial(self._refill, data)
        try:
            if self._graph is None:
                self._issue(executor.run, refill, updates=updates)
            else:
                issue = partial(self._issue, executor.issue, refill, updates=updates)
                self._graph.run(issue, executor.clock, keep=keep)
        except Exception:
            self._step_end.give_up()
            raise
        self.builder.settle()

    def gather(self) -> None:
        """Gathers the weights of sharded stages. Raises ExecutionError where that fails."""
        try:
            self._context.store.gather()
        except ConnectionError as error:
            raise ExecutionError(f"rank {self._context.role.rank}: {error}") from error

    def close(self) -> None:
        """Lets go of the graph, which knows the connections."""
        self._graph = None

    def _issue(self, run: Call, refill: Call, *, updates: bool) -> None:
        """Issues all that a step does with the cells' contents."""
        store = self._context.store
        self._step_end.begin(refill, updates=updates)
        store.begin()
        self._context.memory.start(map(store.module, store.stages))
        run()
        self._step_end.over()

    def _refill(self, data: StepData) -> None:
        """Fills the cells again, before the ops since the step's begin are run again."""
        self.io.clear()
        self.io.put(data)
        self._context.store.gather()
        self._context.store.begin()

    def _check_left_out(self) -> None:
        """Raises InputError where the optimizers cannot be left out of a step."""
        if self._graph is not None:
            raise InputError(
                "update: expected True with cuda_graph, which has recorded it, got False"
            )
        if self._context.program.schedule.updates is not Updates.ITERATION:
            raise InputError(
                "update: expected True with a program that steps after each microbatch, got False"
            )
