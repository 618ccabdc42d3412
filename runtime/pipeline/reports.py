"""Reports of a pipeline on its last step and on its stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.model.weight_coverage import WeightCoverage

from ..device import Device
from ..executor.executor import Executor
from ..measure.trace import Marks, TracedOp, measured_schedule, traced_ops
from ..probes.measurement_program import Asked
from ..probes.measuring import check_numbers
from ..rank.loss_scale import LossScale
from ..tensors.microbatches import Batch
from ..transport import clock_offset
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
        loss_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Measurement:
        """The profile of these stages, measured where they are, by their program's microbatches.

        All processes of the mesh call it between steps, with what :meth:`step` is given. Each runs
        its stages ``repeats`` times after ``warmup``, ``in_flight`` microbatches each (by default
        as many as there are ranks): F, B, W, BW, and with ``recompute`` R. Memory is that of one
        device: of tensors that are shards, its own. Parameters, gradients, buffers and random
        numbers are as before afterwards.

        What all processes of torch.distributed measured is joined into one profile, with links:
        samples of one stage together, the most bytes of any device. With a ``transport`` of the
        caller's it is what its ranks measured.

        Raises InputError for impossible settings, or a program that sends weights; else as step.
        """
        microbatches = in_flight or self.program.schedule.problem.ranks
        asked = Asked(microbatches, recompute=recompute, repeats=repeats, warmup=warmup)
        check_numbers(repeats=repeats, warmup=warmup, in_flight=in_flight)
        return self.measured(asked, StepData(inputs, options, target, loss_kwargs or {}))

    def measured(self, asked: Asked, data: StepData) -> Measurement:
        """The profile that :meth:`profile` measures on a step's ``data``."""
        if self.program.schedule.transfers:
            raise InputError("profile: expected a program that sends activations, not weights")
        self.finish()
        own = self._own
        with self.together():
            own.inputs.put(data)
            own.setup.gather()
            stages = StagesInPlace(own.context, own.step_end, own.setup, asked)
            found = stages.measure()
        own.setup.clear()
        return found

    def marks(self) -> Marks:
        """Start and end of ops, and of averaging over the replicas, in the last step: seconds on
        this rank's clock."""
        return Marks(self._executor().clock.seconds(), dict(self._ran.step_end.averages))

    def trace(self) -> list[TracedOp]:
        """This rank's ops in the last step: op, start and end in milliseconds from the first's."""
        executor = self._executor()
        return traced_ops(executor.ops, executor.clock.seconds())

    def gather_trace(self, marks: Marks | None = None) -> Schedule:
        """The last step as a schedule with measured times, on one clock; all ranks call it.

        ``marks``: those of an earlier step. ``timing.peak_memory`` is in bytes, each rank's count
        in the last step.
        """
        offset, ops = clock_offset(self._transport), self._executor().ops
        own = (marks or self.marks()).later(offset)
        rows = self._transport.gather((ops, own, self.peak_memory))
        return measured_schedule(self._ran.context.program.schedule, rows)

    @property
    def coverage(self) -> dict[int, WeightCoverage]:
        """The weight gradients that W computed in the first step, of each stage of this rank that
        has W's; before that step none.

        It prints as ``W computes 99.6 % of stage 1's gradients; in B: norm.weight``: those
        parameters' gradients are not put off.
        """
        return dict(self._own.setup.coverage)

    @property
    def grad_norm(self) -> float | None:
        """The norm of all gradients of the last step before they were clipped.

        None where nothing needs it. With post-validation that of the last step whose verdict has
        come: the one before the last, until :meth:`finish`.
        """
        return self._ran.step_end.norm

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale of the next step; None without."""
        return self._last.step_end.loss_scale

    @property
    def peak_memory(self) -> int:
        """Bytes of activations held at most during the last step; 0 where they are not counted."""
        return self._ran.context.memory.peak

    @property
    def device_peak(self) -> int | None:
        """Bytes that torch's allocator had in use at most, on a CUDA device."""
        return Device(self.device).peak_memory()

    @property
    def graphs(self) -> int:
        """How many graphs of this rank's stages were made: one per stage and kind of arguments, all
        of them before the first step unless shapes vary or a stage changes."""
        return sum(runner.graphs for runner in self._own.setup.graphed.values())

    @property
    def graph_functions(self) -> int:
        """How many functions of graphs this rank made or compiled: F, B and W of a stage say. After
        the first step there are no more of them, unless :attr:`remade_graphs` says why."""
        return sum(runner.made for runner in self._own.setup.graphed.values())

    @property
    def remade_graphs(self) -> dict[int, str]:
        """The stages of this rank whose graphs were made again after the first step, with the
        shapes that it was for."""
        graphed = self._own.setup.graphed.items()
        return {s: runner.remade for s, runner in graphed if runner.remade is not None}

    @property
    def eager_stages(self) -> dict[int, str]:
        """The stages of this rank that were to be graphs and run as they are, with why; known after
        the first step."""
        setup = self._own.setup
        found = {s: runner.refusal for s, runner in setup.graphed.items()} | setup.never
        return {s: why for s, why in found.items() if why is not None}

    def _executor(self) -> Executor:
        """The executor of the last step. Raises InputError where there was none."""
        if self._ran.setup.executor is None:
            raise InputError("trace: no step has run yet")
        return self._ran.setup.executor
