"""A rank's cells, stage runners and executor for one program, created again if shapes change."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial

import torch

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind

from ...errors import ExecutionError
from ...executor.executor import Executor
from ...executor.offload import Host, OffloadedActivations
from ...executor.outputs import judge_of
from ...executor.skip_connections import Skips
from ...executor.stage_runner import Cell, StageRunner
from ...executor.weight_grad_deferral import WeightQueue
from ...executor.weight_stashing import StashingRunner
from ...graphs.graph_runner import GraphRunner, runner_kind
from ...measure.memory import Memory
from ...optim.optimizer_step import JudgedStepEnd, finish_before_state_dicts
from ...optim.step_end import StepEnd
from ...rank.context import RankContext
from ...stages.fsdp import ShardedStages
from ...stages.streamed_weights import StreamedStages
from ...tensors.stage_interface import StageInterface
from ...tensors.trees import Form
from ..step_inputs import Cells, StepData, StepInputs
from .shape_inference import Interfaces, ShapeInference, made_up


class Prepared:
    """Everything that the steps of one program use on this rank.

    All ranks create theirs at the same time and call the same methods.

    Attributes: ``cells``, by (stage, microbatch), and ``inputs``, which puts batches into them.
    ``runners``: by stage, the objects that run its ops; ``graphed``: those of them that run graphs.
    ``interfaces``: shapes and dtypes of the outputs between stages, inferred by ``shapes``.
    ``executor``: runs the program with all of these; None before the first step. ``modules``: the
    modules on this rank. ``fixed``: whether the executor can run all later steps unchanged.
    ``never``: maps the stages that always run as modules to the reason, which is None if graphs
    were not requested.

    Arguments: ``held``, the exit stack on which closing is registered; ``finish``, which is called
    before the ``state_dict`` of a stage's module or an optimizer (with post-validation); and
    ``before``, what was prepared for an earlier program for the same stages, whose optimizers and
    known shapes are used.
    """

    def __init__(
        self,
        context: RankContext,
        held: ExitStack,
        finish: Callable[[], None],
        *,
        before: Prepared | None = None,
    ) -> None:
        problem, options = context.program.schedule.problem, context.options
        self.context = context
        kind = JudgedStepEnd if options.needs_norm else StepEnd
        self.step_end: StepEnd = kind(context, None if before is None else before.step_end)
        held.callback(self.step_end.close)
        self.skips = Skips(options.skips, problem.stages)
        self.never = self._without_graphs()
        self.modules = [context.store.module(s) for s in context.store.stages]
        self.cells = make_cells(context)
        self.runners = {s: self.runner(s, context.memory) for s in context.role.run}
        self.graphed = {s: r for s, r in self.runners.items() if isinstance(r, GraphRunner)}
        self.shapes = ShapeInference(context, self.skips)
        if before is not None:
            self.shapes.known = before.shapes.known
        self.inputs = StepInputs(context, self.cells, problem.microbatches)
        self.interfaces: Interfaces = []
        self.executor: Executor | None = None
        self._forms: list[Form] = []
        self.fixed = False
        if context.relays:
            stepped = self.step_end.modules.values(), self.step_end.optimizers.values()
            for hook in finish_before_state_dicts(finish, *stepped):
                held.callback(hook.remove)

    def _without_graphs(self) -> dict[int, str | None]:
        """Returns the stages that always run as modules, mapped to the reason.

        The reason is None if the user did not request graphs.
        """
        stages = self.context.role.run
        if self.context.options.stages_as == "eager":
            return dict.fromkeys(stages)
        if isinstance(self.context.store, ShardedStages):
            return dict.fromkeys(stages, "fully_shard's hooks gather its parameters")
        return dict.fromkeys(self.step_end.stashes, "its optimizer steps after each microbatch")

    def gather(self) -> None:
        """Gathers the weights of sharded stages; all ranks call it.

        Raises ExecutionError if another process fails or does not answer in time.
        """
        try:
            self.context.store.gather()
        except ConnectionError as error:
            raise ExecutionError(f"rank {self.context.role.rank}: {error}") from error

    def prepared(self, data: StepData) -> Executor:
        """Returns the executor for a step whose batches, ``data``, are already in the cells.

        It is created in the first step, and again if the outputs of stages change in shape or
        dtype. Then, or if arguments change, graphs are traced again. Raises ShapeError on all ranks
        if a stage does not run on the shapes.
        """
        context, forms = self.context, self.inputs.forms(data) if self.graphed else []
        for stage, runner in self.graphed.items():
            runner.refresh(cell for (s, _), cell in self.cells.items() if s == stage)
        if self.executor is None or context.options.varying_shapes:
            before, self.interfaces = self.interfaces, self.shapes.interfaces(self.cells)
            hand_on(self.cells, self.interfaces)
            self._trace()
            if self.executor is None or self.interfaces != before:
                self.executor = None  # frees its buffers first
                self.executor = Executor(
                    context, self.step_end, self.cells, self.runners, self.interfaces
                )
        elif forms != self._forms:
            self._trace()
        self._forms = forms
        self.fixed = not (context.options.varying_shapes or self.graphed)
        return self.executor

    def _trace(self) -> None:
        """Traces the stages that run as graphs, for the arguments in the cells."""
        for (stage, j), cell in self.cells.items():
            if (runner := self.graphed.get(stage)) is not None:
                given = cell.inputs
                if stage > 0:
                    given = made_up(self.interfaces[stage - 1][j], self.context.device)
                runner.prepare(cell, given, partial(self.context.store.trying, stage))

    def clear(self) -> None:
        """Drops what an unfinished step left in the cells, before its ops are repeated."""
        for cell in self.cells.values():
            self.context.memory.release(cell.held)
            cell.clear()

    def runner(
        self,
        stage: int,
        memory: Memory,
        *,
        stashing: bool = True,
        kind: type[StageRunner] = StageRunner,
    ) -> StageRunner:
        """Returns a new object that runs the ops of ``stage``.

        ``memory``: counts the bytes of activations for it. ``kind``: its class. If the stage
        stashes weights and ``stashing`` is True, the class is :class:`StashingRunner` instead.
        Otherwise, if ``kind`` is the default and the stage runs as graphs, it is the class that
        runs graphs.
        """
        context, store = self.context, self.context.store
        stash = self.step_end.stashes.get(stage) if stashing else None
        make: Callable[..., StageRunner] = kind if stash is None else StashingRunner
        if make is StageRunner and stage not in self.never:
            make = partial(runner_kind(context.options.stages_as), weights_in_w=store.owns(stage))
        return make(
            stage,
            store.module(stage) if stash is None else stash,
            parameters=store.parameters(stage) if stash is None else None,
            leaving=[] if store.owns(stage) else store.parameters(stage)[:1],
            using=partial(store.using, stage),
            memory=memory,
            last=stage == context.program.schedule.problem.stages - 1,
            loss=judge_of(context.options.loss, self._master()),
            seed=self.step_end.seed,
            skips=self.skips,
        )

    def _master(self) -> torch.dtype | None:
        """Returns the dtype in which losses are computed; None: that of the last stage's output."""
        if self.context.options.param_dtype is None:
            return None
        assert isinstance(self.context.store, StreamedStages)
        return self.context.store.precision.master


def hand_on(cells: Cells, interfaces: Interfaces) -> None:
    """Sets the ``interface`` of each cell to that of its stage's output.

    On the last stage, sets it to None.
    """
    for (s, j), cell in cells.items():
        cell.interface = interfaces[s][j] if s < len(interfaces) else None


def make_cells(context: RankContext) -> dict[tuple[int, int], Cell]:
    """Returns new cells for all (stage, microbatch) that this rank runs."""
    memory, host = context.memory, Host(context.device)
    pairs: dict[tuple[int, int], set[OpKind]] = {}
    for item in context.program.instructions[context.role.rank]:
        if isinstance(item, ir.Compute):
            pairs.setdefault((item.op.stage, item.op.microbatch), set()).add(item.op.kind)
    return {pair: make_cell(kinds, memory, host) for pair, kinds in sorted(pairs.items())}


def make_cell(
    kinds: Collection[OpKind],
    memory: Memory,
    host: Host,
    interface: StageInterface | None = None,
) -> Cell:
    """Returns a new cell of a microbatch on a stage.

    ``kinds``: the ops that run for it; with W, the cell gets a queue of deferred weight gradients,
    with O, a place for offloaded activations. ``memory``: counts the bytes of both. ``host``: where
    activations are offloaded to. ``interface``: shapes and dtypes of the stage's output.
    """
    return Cell(
        WeightQueue(memory) if OpKind.W in kinds else None,
        interface,
        recomputed=OpKind.R in kinds,
        offloaded=OffloadedActivations(host, memory) if OpKind.O in kinds else None,
    )
