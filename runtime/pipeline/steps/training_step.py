"""Training steps on one rank: its program's calls on a step's inputs."""

from __future__ import annotations

from functools import partial

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.schedule import Updates

from ...errors import ExecutionError
from ...optim.step_end import StepEnd
from ...rank.context import RankContext
from .step_builder import StepBuilder
from .step_inputs import Cells
from .step_io import StepData, StepIO, make_cells


class TrainingStep:
    """Runs the training steps of one rank; all ranks make theirs and call it alike.

    ``cells`` have what a step computes on, ``io`` fills and empties them, ``builder`` makes the
    calls.
    """

    def __init__(self, context: RankContext, step_end: StepEnd) -> None:
        self._context, self._step_end = context, step_end
        self.cells: Cells = make_cells(context)
        self.io = StepIO(context, self.cells)
        self.builder = StepBuilder(context, self.cells, step_end)

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
        store = self._context.store
        try:
            self._step_end.begin(partial(self._refill, data), updates=updates)
            store.begin()
            self._context.memory.start(map(store.module, store.stages))
            executor.run()
            self._step_end.over()
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

    def _refill(self, data: StepData) -> None:
        """Fills the cells again, before the ops since the step's begin are run again."""
        self.io.clear()
        self.io.put(data)
        self._context.store.gather()
        self._context.store.begin()

    def _check_left_out(self) -> None:
        """Raises InputError where the optimizers cannot be left out of a step."""
        if self._context.program.schedule.updates is not Updates.ITERATION:
            raise InputError(
                "update: expected True with a program that steps after each microbatch, got False"
            )
