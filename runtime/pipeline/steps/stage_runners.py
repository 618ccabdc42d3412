"""Runners of a rank's stages: as modules, or as graphs, which are made before the first step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.weight_coverage import WeightCoverage

from ...executor.delayed_modules import check_order
from ...executor.losses import Judge, judge_of
from ...executor.stage_runner import Cell, StageRunner
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
from .shape_inference import Interfaces, made_up
from .step_io import Cells

NEAR = 0.01
"""How far what a recomputed microbatch holds may be above what was planned."""


class StageRunners:
    """The runners ``of`` this rank's stages, by stage.

    ``coverage``: which weight gradients W computed in the first step, of the stages that have W's.
    """

    def __init__(self, context: RankContext, step_end: StepEnd) -> None:
        self._context, self._step_end = context, step_end
        self.skips = Skips(context.options.skips, context.program.schedule.problem.stages)
        self.coverage: dict[int, WeightCoverage] = {}
        self._never = self._without_graphs()
        self.of = {s: self.new(s, context.memory) for s in context.role.run}
        self._graphs = {s: r for s, r in self.of.items() if isinstance(r, GraphRunner)}
        for s, runner in self.of.items():
            runner.watched = GradientWatch()
            if runner.delayed:
                check_order(context.program, context.role.rank, s)

    def _without_graphs(self) -> dict[int, str | None]:
        """The stages that are run as they are, with why where they were to be graphs."""
        stages = self._context.role.run
        if self._context.options.stages_as == "eager":
            return dict.fromkeys(stages)
        if isinstance(self._context.store, ShardedStages):
            return dict.fromkeys(stages, "fully_shard's hooks gather its parameters")
        return dict.fromkeys(self._step_end.stashes, "its optimizer steps after each microbatch")

    def refresh(self, cells: Cells) -> None:
        """Forgets the graphs of stages that have changed since the last step."""
        for stage, runner in self._graphs.items():
            runner.refresh(cell for (s, _), cell in cells.items() if s == stage)

    def trace(self, cells: Cells, interfaces: Interfaces) -> None:
        """Makes the graphs of the cells' contents, where stages are run as graphs."""
        for (stage, j), cell in cells.items():
            before = interfaces[stage - 1][j] if stage > 0 else None
            if (runner := self._graphs.get(stage)) is not None:
                given = cell.inputs
                if before is not None:
                    given = made_up(before, self._context.device)
                runner.prepare(cell, given, partial(self._context.store.trying, stage))
            if cell.recomputed:
                self._check_held(stage, j, cell, sum(before.nbytes) if before is not None else 0)

    def _check_held(self, stage: int, j: int, cell: Cell, held: int) -> None:
        """Raises InputError where a microbatch, whose input has ``held`` bytes, holds more of them
        until its R than the program's profile says, which is then of another model or other
        shapes."""
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
        return sum(runner.graphs for runner in self._graphs.values())

    @property
    def refusals(self) -> dict[int, str]:
        """Why stages that were to be graphs are none."""
        found = {runner.stage: runner.refusal for runner in self._graphs.values()} | self._never
        return {s: why for s, why in found.items() if why is not None}

    @property
    def functions(self) -> int:
        """How many functions of graphs were made."""
        return sum(runner.made for runner in self._graphs.values())

    @property
    def remade(self) -> dict[int, str]:
        """Why functions of stages were made after the first step."""
        return {r.stage: r.remade for r in self._graphs.values() if r.remade is not None}

    def tell_made(self, tell: Callable[[int, int], object]) -> None:
        """Tells each function that is made: how many there are, of how many of the program."""
        row = self._context.program.instructions[self._context.role.rank]
        ops = {(i.op.kind, i.op.stage) for i in row if isinstance(i, ir.Compute)}
        graphed = {runner.stage for runner in self._graphs.values()}
        count = sum(stage in graphed and not kind.copies for kind, stage in ops)
        for runner in self._graphs.values():
            runner.on_made = lambda: tell(self.functions, max(count, self.functions))

    def settle(self) -> None:
        """After a step: of the first one it is known what W computed, and all graphs are made."""
        for graphed in self._graphs.values():
            graphed.settled = True
        for s, runner in self.of.items():
            found = runner.covered(partial(model_name, self._context.options.names))
            if found is not None:
                self.coverage[s] = found

    def new(
        self,
        stage: int,
        memory: Memory,
        *,
        stashing: bool = True,
        kind: type[StageRunner] = StageRunner,
    ) -> StageRunner:
        """A runner of the stage that counts in ``memory``; not ``stashing``, one of this ``kind``
        that never stashes weights."""
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
