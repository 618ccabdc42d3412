"""Reports of a pipeline on its last step and on its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.model.weight_coverage import WeightCoverage

from ..device import Device
from ..executor.executor import Executor
from ..measure.trace import TracedOp, measured_schedule, traced_ops
from ..probes.measurement_program import Asked
from ..probes.measuring import check_numbers, check_view
from ..rank.loss_scale import LossScale
from ..tensors.microbatches import Batch
from ..transport import clock_offset, ending_together
from .in_place import StagesInPlace
from .rank_pipeline import RankPipeline
from .step_arguments import StepData


class PipelineReports(RankPipeline):
    """Times, memory, norms, coverage and graphs of one rank."""

    def profile(
        self,
        *inputs: Batch,
        target: Batch | None = None,
        repeats: int = 10,
        warmup: int = 2,
        in_flight: int | None = None,
        recompute: bool = False,
        view: str = "all",
        loss_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Measurement:
        """The profile of these stages, measured where they are, by their program's microbatches.

        All processes of the mesh call it between steps, with what :meth:`step` is given. Each runs
        its stages ``repeats`` times after ``warmup``, ``in_flight`` microbatches each (by default
        as many as there are ranks): F, B, W, BW, and with ``recompute`` R. Memory is that of one
        device: of tensors that are shards, its own. Parameters, gradients, buffers and random
        numbers are as before afterwards.

        ``view``: ``all`` joins what all processes of torch.distributed measured (samples of one
        stage together, the most bytes of any device) into one profile, with links; ``pipeline``
        what the ranks of this one did; ``rank`` is of this rank's stages alone, in their order,
        waits for no other result, and has no links.

        Raises InputError for impossible settings, or a program that sends weights; else as step.
        """
        microbatches = in_flight or self.program.schedule.problem.ranks
        asked = Asked(microbatches, recompute=recompute, repeats=repeats, warmup=warmup)
        check_view(view)
        check_numbers(repeats=repeats, warmup=warmup, in_flight=in_flight)
        return self.measured(asked, StepData(inputs, options, target, loss_kwargs or {}), view)

    def measured(self, asked: Asked, data: StepData, view: str = "all") -> Measurement:
        """The profile that :meth:`profile` measures on a step's ``data``."""
        if self.program.schedule.transfers:
            raise InputError("profile: expected a program that sends activations, not weights")
        self.finish()
        with ending_together(self._transport):
            self._inputs.put(data)
            self._setup.gather()
            stages = StagesInPlace(self._context, self._step_end, self._setup, asked)
            found = stages.measure(view)
        self._setup.clear()
        return found

    def marks(self) -> list[float]:
        """Start and end of each op of the last step, in turn: seconds on this rank's clock."""
        return self._ran._executor().clock.seconds()

    def trace(self) -> list[TracedOp]:
        """This rank's ops in the last step: op, start and end in milliseconds from the first's."""
        return traced_ops(self._ran._executor().ops, self.marks())

    def averages(self) -> dict[int, tuple[float, float]]:
        """Start and end of each stage's averaging over the replicas in the last step: seconds on
        this rank's clock.

        Empty without replicas, and on a GPU.
        """
        return dict(self._ran._step_end.averages)

    def gather_trace(
        self,
        marks: Sequence[float] | None = None,
        averages: Mapping[int, tuple[float, float]] | None = None,
    ) -> Schedule:
        """The last step as a schedule with measured times, on one clock; all ranks call it.

        ``marks`` and ``averages`` are those of an earlier step; with marks alone no averages are
        told. ``timing.peak_memory`` is in bytes, each rank's count in the last step.
        """
        offset = clock_offset(self._transport)
        seconds = [mark + offset for mark in (self.marks() if marks is None else marks)]
        if averages is None:
            averages = self.averages() if marks is None else {}
        spans = {stage: (start + offset, end + offset) for stage, (start, end) in averages.items()}
        ops = self._ran._executor().ops
        rows = self._transport.gather((ops, seconds, self.peak_memory, spans))
        return measured_schedule(self._ran.program.schedule, rows)

    @property
    def coverage(self) -> dict[int, WeightCoverage]:
        """The weight gradients that W computed in the first step, of each stage of this rank that
        has W's; before that step none.

        It prints as ``W computes 99.6 % of stage 1's gradients; in B: norm.weight``: those
        parameters' gradients are not put off.
        """
        return dict(self._setup.coverage)

    @property
    def grad_norm(self) -> float | None:
        """The norm of all gradients of the last step before they were clipped.

        None where nothing needs it. With post-validation that of the last step whose verdict has
        come: the one before the last, until :meth:`finish`.
        """
        return self._ran._step_end.norm

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale of the next step; None without."""
        (last,) = self._turn or (self,)
        return last._step_end.loss_scale

    @property
    def peak_memory(self) -> int:
        """Bytes of activations held at most during the last step; 0 where they are not counted."""
        return self._ran._memory.peak

    @property
    def device_peak(self) -> int | None:
        """Bytes that torch's allocator had in use at most, on a CUDA device."""
        return Device(self.device).peak_memory()

    @property
    def graphs(self) -> int:
        """How many graphs of this rank's stages were made: one per stage and kind of arguments, all
        of them before the first step unless shapes vary or a stage changes."""
        return sum(runner.graphs for runner in self._setup.graphed.values())

    @property
    def graph_functions(self) -> int:
        """How many functions of graphs this rank made or compiled: F, B and W of a stage say. After
        the first step there are no more of them, unless :attr:`remade_graphs` says why."""
        return sum(runner.made for runner in self._setup.graphed.values())

    @property
    def remade_graphs(self) -> dict[int, str]:
        """The stages of this rank whose graphs were made again after the first step, with the
        shapes that it was for."""
        graphed = self._setup.graphed.items()
        return {s: runner.remade for s, runner in graphed if runner.remade is not None}

    def tell_graphs(self, tell: Callable[[int, int], object]) -> None:
        """Lets ``tell`` be called with each function of a graph that is made or compiled: how many
        there are on this rank, of how many of the program."""
        row = self.program.instructions[self.rank]
        graphed = self._setup.graphed
        ops = {(i.op.kind, i.op.stage) for i in row if isinstance(i, ir.Compute)}
        count = sum(stage in graphed and not kind.copies for kind, stage in ops)
        for runner in graphed.values():
            runner.on_made = lambda: tell(self.graph_functions, max(count, self.graph_functions))

    @property
    def eager_stages(self) -> dict[int, str]:
        """The stages of this rank that were to be graphs and run as they are, with why; known after
        the first step."""
        graphed = self._setup.graphed.items()
        found = {s: runner.refusal for s, runner in graphed} | self._setup.never
        return {s: why for s, why in found.items() if why is not None}

    def _executor(self) -> Executor:
        """The executor of the last step. Raises InputError where there was none."""
        if self._setup.executor is None:
            raise InputError("trace: no step has run yet")
        return self._setup.executor

    @property
    def _ran(self) -> Self:
        """The pipeline that ran the last step: this one, or that of another number."""
        found: Self = self if self._other is None else self._other
        return found
