"""Trains a model source by a program, as ``pipeloom run`` does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.formats import dump_schedule, load_program
from pipeloom.ir.formats.atomic_write import write_json
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule

from ..device import with_index
from ..launch.processes import launch_ranks
from ..models.by_name import load_source
from ..pipeline.layered_source import as_planned
from ..pipeline.model_source import ModelSource, check_cut, check_evaluation, on_device
from ..pipeline.pipeline import Pipeline
from .callbacks import listening
from .checkpoints import check_checkpoints
from .loop import Listener, TrainingLoop
from .replicas import Replicas, count_replicas
from .settings import DEFAULTS, RunSettings, dtype_of


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """The result of a run: measurements over all ``replicas`` (their number) of the pipeline.

    ``losses``: for each step, the mean over its microbatches. ``seconds``: for each step, the time
    of the slowest rank since the common start. ``peak_memory``: for each rank, the maximum bytes of
    activations in any step and replica. ``device_peak``: for each rank, the peak bytes of torch's
    CUDA allocator in any replica; None on other devices.

    ``measured``: the step of median time, in the first replica, as a schedule with measured times
    (milliseconds). It is one of the last 256 steps, and the run's first step only if there are no
    others, as that includes preparations. ``measured_step``: its number. ``planned``: the program's
    schedule.

    ``notes``: warnings about optimizer options overridden by a checkpoint, the first loss that is
    not finite, microbatches of another size than the profile's, parameters of another model, a peak
    above the plan's memory limit, a barrier that the plan lacks, and stages that could not run as
    graphs. ``first_step``: the number of the run's first step; 0 unless it was resumed.
    ``evaluations``: pairs of a step and the loss of the evaluation after it.
    """

    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    peak_memory: tuple[int, ...]
    device_peak: tuple[int | None, ...]
    measured: Schedule
    planned: Schedule
    notes: tuple[str, ...] = ()
    replicas: int = 1
    first_step: int = 0
    evaluations: tuple[tuple[int, float], ...] = ()
    measured_step: int = 0

    @property
    def note(self) -> str | None:
        """All of ``notes`` in one line; None if there are none."""
        return "; ".join(self.notes) or None

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON object that ``run --json`` prints, as a dict.

        Losses that are not finite are None in it.
        """
        return {
            "steps": len(self.losses),
            "first_step": self.first_step,
            "replicas": self.replicas,
            "losses": [_finite(loss) for loss in self.losses],
            "evaluations": [[step, _finite(loss)] for step, loss in self.evaluations],
            "seconds": list(self.seconds),
            "peak_memory": list(self.peak_memory),
            "device_peak_memory": list(self.device_peak),
            "planned": _figures(self.planned),
            "measured": _figures(self.measured),
            "measured_step": self.measured_step,
            "note": self.note,
        }


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _figures(schedule: Schedule) -> dict[str, float]:
    timing = schedule.timing or simulate(schedule)
    return {
        "period": timing.period,
        "makespan": timing.makespan,
        "bubble_rate": timing.bubble_rate(schedule.problem.objective),
    }


def run_program(
    program: Program | str,
    source: ModelSource | str,
    settings: RunSettings = DEFAULTS,
    *,
    callbacks: Sequence[Listener | str] = (),
    trace_path: str | None = None,
) -> RunResult | None:
    """Trains the model ``source`` by ``program``, and returns the run's losses and measurements.

    ``program``: a program, or the name of its file. ``source``: a model source, or its name,
    ``MODULE:ATTRIBUTE`` or ``hf:PATH``. If the program averages over replicas, ``source.batch`` is
    called for the microbatches of all replicas, and each replica trains on its part of the result.

    Starts one process on this machine for each rank of each replica. But if torchrun started this
    process, it is itself one of the ranks, and the result is None except on the first one.

    ``callbacks``: functions, or names ``MODULE:ATTRIBUTE``. They are called in this process (under
    torchrun, in the first process) after each step, with its :class:`StepRecord`. ``trace_path``:
    the file to which the result's schedule ``measured`` is written. Raises LaunchError if a rank
    fails, InputError for invalid arguments.
    """
    loaded = load_program(program) if isinstance(program, str) else program
    replicas = count_replicas(loaded, settings)
    check_checkpoints(settings)
    named = load_source(source) if isinstance(source, str) else source  # fails early and only here
    if settings.eval_every is not None:
        check_evaluation(named)
    problem = loaded.schedule.problem
    check_cut(as_planned(named, problem.profile), problem.stages)
    with listening(callbacks, progress=settings.progress) as listener:
        results = launch_ranks(
            train,
            problem.ranks,
            (loaded, source, settings),
            replicas=replicas,
            device=settings.device,
            message_timeout=settings.timeout,
            listener=listener,
        )
    result: RunResult | None = results.get(0)
    if result is not None and trace_path is not None:
        write_json(dump_schedule(result.measured), trace_path)
    return result


def train(
    program: Program,
    source: ModelSource | str,
    settings: RunSettings,
    listener: Listener | None = None,
) -> RunResult:
    """Runs one rank's part of :func:`run_program`, and returns the result of the run.

    ``torch.distributed`` must be initialized. ``listener``: called with the record of each step, on
    the first rank of the first replica.
    """
    torch.manual_seed(settings.seed)
    model = load_source(source) if isinstance(source, str) else source
    replicas = Replicas.of(program, settings.timeout)
    pipeline = make_pipeline(program, model, settings, replicas=replicas)
    loop = TrainingLoop(model, settings, replicas, listener)
    loop.resume(pipeline)
    loop.run(pipeline)
    pipeline.finish()
    rows = replicas.gather(pipeline, (_lines(pipeline), pipeline.device_peak))
    lines = [line for row in rows for some, _ in row for line in some]
    number, marks = loop.median()
    measured = pipeline.gather_trace(marks)
    pipeline.close()
    records = loop.records
    return RunResult(
        losses=tuple(record.loss for record in records),
        seconds=tuple(record.seconds for record in records),
        peak_memory=tuple(loop.peaks),
        device_peak=tuple(
            max((peak for _, peak in column if peak), default=None)
            for column in zip(*rows, strict=True)
        ),
        measured=measured,
        planned=program.schedule,
        notes=(*loop.notes.values(), *dict.fromkeys(lines)),
        replicas=replicas.count,
        first_step=records[0].step,
        evaluations=tuple((r.step, r.eval_loss) for r in records if r.eval_loss is not None),
        measured_step=number,
    )


def _lines(pipeline: Pipeline) -> list[str]:
    """Returns a line for each stage of this rank that runs as a module instead of graphs.

    The line contains the reason. Stages count only if graphs were requested for them.
    """
    return [f"stage {s} runs eager: {why}" for s, why in pipeline.eager_stages.items()]


def make_pipeline(
    program: Program, model: ModelSource, settings: RunSettings, *, replicas: Replicas
) -> Pipeline:
    """Returns this rank's pipeline of ``model``, created as the settings define.

    ``replicas``: this process's view of the replicas, with its process groups.
    """
    device = with_index(torch.device(settings.device))
    place = on_device(device, dtype_of(settings.dtype))
    options: dict[str, Any] = {
        **settings.options(),
        **{"group": replicas.group, "data_group": replicas.data_group, "device": device},
    }
    return Pipeline.from_source(program, model, place=place, **options)
