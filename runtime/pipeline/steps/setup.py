"""A program made ready to run on one rank, before its first step and where shapes change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.weight_coverage import WeightCoverage

from ...device import Device
from ...errors import ExecutionError
from ...executor.delayed_modules import check_order
from ...executor.executor import Executor
from ...executor.offload import Host, OffloadedActivations
from ...executor.outputs import judge_of
from ...executor.stage_runner import Cell, StageRunner
from ...executor.weight_grad_deferral import WeightQueue
from ...executor.weight_stashing import StashingRunner
from ...graphs.graph_runner import GraphRunner, runner_kind
from ...measure.gradient_watch import GradientWatch, covered
from ...measure.memory import Memory
from ...optim.step_end import StepEnd
from ...rank.context import RankContext
from ...rank.options import IN_MODEL
from ...stages.fsdp import ShardedStages
from ...stages.streamed_weights import StreamedStages
from ...tensors.skip_connections import Skips
from ..state_names import model_name
from ..step_inputs import Cells
from .shape_inference import Interfaces, ShapeInference, made_up


class StepSetup:
    """The ``cells`` of a rank's steps, the ``runners`` of its stages, the ``interfaces`` between
    stages, the ``shapes`` that they follow from, and the ``executor`` made of them; all ranks make
    theirs and call it alike.

    ``modules``: the stages here; ``fixed``: the executor serves every later step. ``never``:
    the stages that are run as they are, with why if they were to be graphs; ``coverage``: which
    weight gradients W computed in the first step, of the stages that have W's.
    """

    def __init__(self, context: RankContext, step_end: StepEnd) -> None:
        problem, role = context.program.schedule.problem, context.role
        self._context, self._step_end = context, step_end
        self.skips = Skips(context.options.skips, problem.stages)
        self.never = self._without_graphs()
        self.modules = [context.store.module(s) for s in context.store.stages]
        self.cells = make_cells(context)
        self.runners = {s: self.runner(s, context.memory) for s in role.run}
        self.graphed = {s: r for s, r in self.runners.items() if isinstance(r, GraphRunner)}
        self.shapes = ShapeInference(
            context.store, problem.owner, self.skips, context.transport, context.device
        )
        self.interfaces: Interfaces = []
        self.executor: Executor | None = None
        self.coverage: dict[int, WeightCoverage] = {}
        self.fixed, self.settled = False, False
        for s, runner in self.runners.items():
            runner.watched = GradientWatch()
            if runner.delayed:
                check_order(context.program, role.rank, s)

    def _without_graphs(self) -> dict[int, str | None]:
        """The stages that are run as they are, with why where they were to be graphs."""
        stages = self._context.role.run
        if self._context.options.stages_as == "eager":
            return dict.fromkeys(stages)
        if isinstance(self._context.store, ShardedStages):
            return dict.fromkeys(stages, "fully_shard's hooks gather its parameters")
        return dict.fromkeys(self._step_end.stashes, "its optimizer steps after each microbatch")

    def follow(self, other: StepSetup) -> None:
        """Knows the shapes that stages of another program, the same stages, were seen to give."""
        self.shapes.known = other.shapes.known

    def gather(self) -> None:
        """Gathers the weights of sharded stages. Raises ExecutionError where that fails."""
        try:
            self._context.store.gather()
        except ConnectionError as error:
            raise ExecutionError(f"rank {self._context.role.rank}: {error}") from error

    def prepared(self) -> Executor:
        """The executor for the cells' contents, made in the first step, and where shapes may vary
        for each other ones. Raises ShapeError, alike on all ranks."""
        context = self._context
        for stage, runner in self.graphed.items():
            runner.refresh(cell for (s, _), cell in self.cells.items() if s == stage)
        if self.executor is None or context.options.varying_shapes:
            before, self.interfaces = self.interfaces, self.shapes.interfaces(self.cells)
            hand_on(self.cells, self.interfaces)
            self._trace()
            if self.executor is None or self.interfaces != before:
                if context.buffers is not None:
                    Device(context.device).synchronize()  # what was received there has been read
                self.executor = Executor(
                    context, self._step_end, self.cells, self.runners, self.interfaces
                )
        self.fixed = not (context.options.varying_shapes or self.graphed)
        return self.executor

    def _trace(self) -> None:
        """Makes the graphs of the cells' contents, where stages are run as graphs."""
        for (stage, j), cell in self.cells.items():
            if (runner := self.graphed.get(stage)) is not None:
                given = cell.inputs
                if stage > 0:
                    given = made_up(self.interfaces[stage - 1][j], self._context.device)
                runner.prepare(cell, given, partial(self._context.store.trying, stage))

    def settle(self) -> None:
        """After the first step: it is known what W computed, and all graphs are made."""
        self.settled = True
        for graphed in self.graphed.values():
            graphed.settled = True
        for s, runner in self.runners.items():
            found = covered(runner, partial(model_name, self._context.options.names))
            if found is not None:
                self.coverage[s] = found

    def clear(self) -> None:
        """Drops all that a step which is to be run again has left so far."""
        for cell in self.cells.values():
            self._context.memory.release(cell.held)
            cell.clear()

    def runner(
        self,
        stage: int,
        memory: Memory,
        *,
        stashing: bool = True,
        kind: type[StageRunner] = StageRunner,
    ) -> StageRunner:
        """A runner of the stage that counts in ``memory``; not ``stashing``, one of this ``kind``
        that never stashes weights."""
        context, store = self._context, self._context.store
        stash = self._step_end.stashes.get(stage) if stashing else None
        make: Callable[..., StageRunner] = kind if stash is None else StashingRunner
        if make is StageRunner and stage not in self.never:
            in_model, stays = context.options.loss == IN_MODEL, store.owns(stage)
            make = runner_kind(context.options.stages_as)
            if context.options.stages_as != "eager":
                make = partial(make, loss_in_model=in_model, weights_in_w=stays)
        return make(
            stage,
            store.module(stage) if stash is None else stash,
            parameters=store.parameters(stage) if stash is None else None,
            leaving=[] if store.owns(stage) else store.parameters(stage)[:1],
            using=partial(store.using, stage),
            memory=memory,
            last=stage == context.program.schedule.problem.stages - 1,
            loss=judge_of(context.options.loss, self._master()),
            seed=self._step_end.seed,
            skips=self.skips if self.skips.passes(stage) else None,
        )

    def _master(self) -> torch.dtype | None:
        """The dtype in which losses are computed, if stages compute in another."""
        if self._context.options.param_dtype is None:
            return None
        assert isinstance(self._context.store, StreamedStages)
        return self._context.store.precision.master


def hand_on(cells: Cells, interfaces: Interfaces) -> None:
    """Tells the cells what their stages hand on, by stage and microbatch; the last one nothing."""
    for (s, j), cell in cells.items():
        cell.interface = interfaces[s][j] if s < len(interfaces) else None


def make_cells(
    context: RankContext, interfaces: Interfaces | None = None
) -> dict[tuple[int, int], Cell]:
    """The cells of the rank, one for each (stage, microbatch); those with a W get a queue.
    ``interfaces``: what stages hand on, where that is known."""
    memory, host = context.memory, Host(context.device)
    pairs: dict[tuple[int, int], set[OpKind]] = {}
    for item in context.program.instructions[context.role.rank]:
        if isinstance(item, ir.Compute):
            pairs.setdefault((item.op.stage, item.op.microbatch), set()).add(item.op.kind)
    cells = {
        pair: Cell(
            WeightQueue(memory) if OpKind.W in kinds else None,
            recomputed=OpKind.R in kinds,
            offloaded=OffloadedActivations(host, memory) if OpKind.O in kinds else None,
        )
        for pair, kinds in sorted(pairs.items())
    }
    hand_on(cells, interfaces or [])
    return cells
