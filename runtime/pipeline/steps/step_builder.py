"""Buffers and calls of a step of known shapes, made again only for other shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.weight_coverage import WeightCoverage

from ...device import Device
from ...executor.delayed_modules import check_order
from ...executor.executor import Executor
from ...executor.losses import Judge, judge_of
from ...executor.stage_runner import Cell, StageRunner
from ...executor.tensor_routing import ActivationRouting, TensorRouting
from ...executor.weight_stashing import StashingRunner
from ...graphs.graph_runner import GraphRunner, runner_kind
from ...measure.activation_ledger import Memory
from ...measure.gradient_watch import GradientWatch
from ...measure.plan_deviation import LEAST_BYTES
from ...optim.step_end import StepEnd
from ...rank.context import RankContext
from ...rank.model_names import model_name
from ...rank.options import IN_MODEL
from ...stages.fsdp import ShardedStages
from ...stages.streamed_weights import StreamedStages
from ...tensors.skip_connections import Skips
from .shape_inference import Interfaces, ShapeInference, made_up
from .step_inputs import Cells

NEAR = 0.01
"""How far what a recomputed microbatch holds may be above what was planned."""


class StepBuilder:
    """Makes the executor of a step: in the first one, and where shapes may vary for each other
    ones.

    ``runners`` run the stages of this rank; ``interfaces`` are what stages hand on; ``coverage``:
    which weight gradients W computed in the first step, of the stages that have W's.
    """

    def __init__(self, context: RankContext, cells: Cells, step_end: StepEnd) -> None:
        problem = context.program.schedule.problem
        self._context, self._cells, self._step_end = context, cells, step_end
        self.skips = Skips(context.options.skips, problem.stages)
        self._shapes = ShapeInference(
            context.store, problem.owner, self.skips, context.transport, context.device
        )
        self.interfaces: Interfaces = []
        self.coverage: dict[int, WeightCoverage] = {}
        self._executor: Executor | None = None
        self._never = self._without_graphs()
        self.runners = {s: self.runner(s, context.memory) for s in context.role.run}
        for s, runner in self.runners.items():
            runner.watched = GradientWatch()
            if runner.delayed:
                check_order(context.program, context.role.rank, s)

    def follow(self, other: StepBuilder) -> None:
        """Knows the shapes that stages of another program, the same stages, were seen to give."""
        self._shapes.known = other._shapes.known

    def executor(self) -> Executor:
        """The executor for the cells' contents; all ranks call it. Raises ShapeError, alike on
        all."""
        self._refresh()
        if self._executor is not None and not self._context.options.varying_shapes:
            return self._executor
        interfaces = self._shapes.interfaces(self._cells)
        if self._executor is not None and interfaces == self.interfaces:
            self._trace()
            return self._executor
        self.interfaces = interfaces
        for (s, j), cell in self._cells.items():
            cell.interface = interfaces[s][j] if s < len(interfaces) else None
        self._trace()
        if self._context.buffers is not None:
            Device(self._context.device).synchronize()  # what was received there has been read
        self._context.transport.renew()
        self._executor = make_executor(
            self._context, self._step_end, self._cells, self.runners, interfaces
        )
        return self._executor

    def _without_graphs(self) -> dict[int, str | None]:
        """The stages that are run as they are, with why where they were to be graphs."""
        stages = self._context.role.run
        if self._context.options.stages_as == "eager":
            return dict.fromkeys(stages)
        if isinstance(self._context.store, ShardedStages):
            return dict.fromkeys(stages, "fully_shard's hooks gather its parameters")
        return dict.fromkeys(self._step_end.stashes, "its optimizer steps after each microbatch")

    def _refresh(self) -> None:
        """Forgets the graphs of stages that have changed since the last step."""
        for stage, runner in self.runners.items():
            if isinstance(runner, GraphRunner):
                runner.refresh(cell for (s, _), cell in self._cells.items() if s == stage)

    def _trace(self) -> None:
        """Makes the graphs of the cells' contents, where stages are run as graphs."""
        for (stage, j), cell in self._cells.items():
            runner = self.runners[stage]
            if isinstance(runner, GraphRunner):
                given = cell.inputs
                if stage > 0:
                    given = made_up(self.interfaces[stage - 1][j], self._context.device)
                runner.prepare(cell, given, partial(self._context.store.trying, stage))
            if cell.recomputed:
                self._check_held(stage, j, cell)

    def _check_held(self, stage: int, j: int, cell: Cell) -> None:
        """Raises InputError where a microbatch holds more bytes until its R than the program's
        profile says, which is then of another model or other shapes."""
        held = sum(self.interfaces[stage - 1][j].nbytes) if stage > 0 else 0
        if (sent := cell.interface) is not None:
            pairs = zip(sent.nbytes, sent.needs_grad, strict=True)
            held += sum(size for size, back in pairs if back)
        planned = self._context.program.schedule.problem.profile.stages[stage].at(j)
        if planned.m_b >= LEAST_BYTES and held > (1 + NEAR) * planned.kept:
            raise InputError(
                f"stage {stage}: expected a microbatch to hold {planned.kept:.0f} bytes until its "
                f"R, as in the program's profile, got {held}: profile this model in these stages "
                "and shapes, and plan again"
            )

    @property
    def graphs(self) -> int:
        """How many graphs there are of the rank's stages."""
        return sum(runner.graphs for runner in self._graphed())

    @property
    def refusals(self) -> dict[int, str]:
        """Why stages that were to be graphs are none."""
        found = {runner.stage: runner.refusal for runner in self._graphed()} | self._never
        return {s: why for s, why in found.items() if why is not None}

    @property
    def functions(self) -> int:
        """How many functions of graphs were made."""
        return sum(runner.made for runner in self._graphed())

    @property
    def remade(self) -> dict[int, str]:
        """Why functions of stages were made after the first step."""
        return {r.stage: r.remade for r in self._graphed() if r.remade is not None}

    def tell_made(self, tell: Callable[[int, int], object]) -> None:
        """Tells each function that is made: how many there are, of how many of the program."""
        row = self._context.program.instructions[self._context.role.rank]
        ops = {(i.op.kind, i.op.stage) for i in row if isinstance(i, ir.Compute)}
        graphed = {runner.stage for runner in self._graphed()}
        count = sum(stage in graphed and not kind.copies for kind, stage in ops)
        for runner in self._graphed():
            runner.on_made = lambda: tell(self.functions, max(count, self.functions))

    def _graphed(self) -> list[GraphRunner]:
        return [runner for runner in self.runners.values() if isinstance(runner, GraphRunner)]

    def settle(self) -> None:
        """After a step: of the first one it is known what W computed, and all graphs are made."""
        for graphed in self._graphed():
            graphed.settled = True
        for s, runner in self.runners.items():
            found = runner.covered(partial(model_name, self._context.options.names))
            if found is not None:
                self.coverage[s] = found

    def ran(self) -> Executor:
        """The executor of the last step. Raises InputError where there was none."""
        if self._executor is None:
            raise InputError("trace: no step has run yet")
        return self._executor

    def runner(
        self,
        stage: int,
        memory: Memory,
        *,
        stashing: bool = True,
        kind: type[StageRunner] = StageRunner,
    ) -> StageRunner:
        """A runner that counts in ``memory``; not ``stashing``, one of its ``kind`` that never
        stashes weights."""
        context = self._context
        stash = self._step_end.stashes.get(stage) if stashing else None
        make: Callable[..., StageRunner] = kind if stash is None else StashingRunner
        if make is StageRunner and stage not in self._never:
            in_model, stays = context.options.loss == IN_MODEL, context.store.owns(stage)
            make = runner_kind(context.options.stages_as)
            if context.options.stages_as != "eager":
                make = partial(make, loss_in_model=in_model, weights_in_w=stays)
        return make(
            stage,
            context.store.module(stage) if stash is None else stash,
            parameters=context.store.parameters(stage) if stash is None else None,
            leaving=[] if context.store.owns(stage) else context.store.parameters(stage)[:1],
            using=partial(context.store.using, stage),
            memory=memory,
            last=stage == context.program.schedule.problem.stages - 1,
            loss=make_judge(context),
            seed=self._step_end.seed,
            skips=self.skips if self.skips.passes(stage) else None,
        )


def make_judge(context: RankContext) -> Judge | None:
    """The function that computes losses, on outputs in the modules' own dtype where they compute in
    another."""
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
        context,
        cells=cells,
        runners=runners,
        routing=routing,
        step_end=step_end,
        label=label,
    )
