"""Reports of a pipeline about its last step and its stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model.schedule import Schedule

from ..device import Device
from ..executor.executor import Executor
from ..measure.trace import Marks, measured_schedule
from ..probes.measuring import check_numbers
from ..probes.stage_probe import Asked
from ..rank.loss_scale import LossScale
from ..tensors.microbatches import Batch
from ..transport import clock_offset
from .in_place import StagesInPlace
from .rank_pipeline import RankPipeline
from .step_inputs import StepData


class PipelineReports(RankPipeline):
    """Times, memory, norms and graphs of one rank."""

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
        """Profiles the pipeline's stages as they are, with microbatches of a step.

        All processes of the mesh call it between steps, with the arguments of :meth:`step`. After
        ``warmup`` runs, each process runs its stages ``repeats`` times, with ``in_flight``
        microbatches (by default, the number of ranks): F, B, W, BW and, with ``recompute``, R.
        Memory is per device: only its own shards count. Parameters, gradients, buffers and random
        states are restored.

        The measurements of all processes of torch.distributed are joined into one profile with
        links: samples of the same stage are pooled, and bytes are the maximum over devices. With a
        ``transport`` of the caller, only its ranks are joined.

        Raises InputError for invalid settings or a program that sends weights; otherwise as
        :meth:`step`.
        """
        microbatches = in_flight or self.program.schedule.problem.ranks
        asked = Asked(microbatches, recompute=recompute, repeats=repeats, warmup=warmup)
        check_numbers(repeats=repeats, warmup=warmup, in_flight=in_flight)
        return self.measured(asked, StepData(inputs, options, target, loss_kwargs or {}))

    def measured(self, asked: Asked, data: StepData) -> Measurement:
        """Returns the profile described in :meth:`profile`, measured on ``data`` of a step."""
        if self.program.schedule.transfers:
            raise InputError("profile: expected a program that sends activations, not weights")
        self.finish()
        own = self._own
        with self.together():
            own.inputs.put(data)
            own.gather()
            stages = StagesInPlace(own, asked)
            found = stages.measure()
        own.clear()
        return found

    def marks(self) -> Marks:
        """Start and end of ops, and of averaging over replicas, in the last step.

        In seconds on this rank's clock.
        """
        return Marks(self._executor().clock.seconds(), dict(self._ran.step_end.averages))

    def gather_trace(self, marks: Marks | None = None) -> Schedule:
        """Returns the last step as a schedule with measured times on one clock.

        All ranks call it. ``marks``: those of an earlier step. ``timing.peak_memory`` is the count
        of each rank in the last step, in bytes.
        """
        offset, ops = clock_offset(self._transport), self._executor().ops
        own = (marks or self.marks()).later(offset)
        rows = self._transport.gather((ops, own, self.peak_memory))
        return measured_schedule(self._ran.context.program.schedule, rows)

    @property
    def grad_norm(self) -> float | None:
        """The norm of all gradients of the last step before clipping.

        None if it is not needed. With post-validation, it is that of the last step with a verdict:
        the step before the last, until :meth:`finish`.
        """
        return self._ran.step_end.norm

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale of the next step; None without loss scaling."""
        return self._last.step_end.loss_scale

    @property
    def peak_memory(self) -> int:
        """Peak bytes of activations during the last step; 0 if they are not counted."""
        return self._ran.context.memory.peak

    @property
    def device_peak(self) -> int | None:
        """Peak bytes in use by torch's allocator; None if the device is not a CUDA device."""
        return Device(self.device).peak_memory()

    @property
    def eager_stages(self) -> dict[int, str]:
        """This rank's stages that run as modules although graphs were requested, with the reason.

        Known after the first step.
        """
        found = {s: runner.refusal for s, runner in self._own.graphed.items()} | self._own.never
        return {s: why for s, why in found.items() if why is not None}

    def _executor(self) -> Executor:
        """Returns the executor of the last step. Raises InputError if there was no step."""
        if self._ran.executor is None:
            raise InputError("trace: no step has run yet")
        return self._ran.executor
