"""Training of a model source by a program, as in ``pipeloom run``, and its result."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.spread import ExpectedMakespan
from pipeloom.ir.formats import dump_schedule, load_program
from pipeloom.ir.formats.atomic_write import write_json
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule

from ..device import with_index
from ..launch.processes import launch_ranks
from ..measure.plan_deviation import other_model, parameter_bytes
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
    """Measurements of a run, over all ``replicas`` of the pipeline.

    ``losses``: for each step, the mean over its microbatches. ``seconds``: for each step, the
    slowest rank's time since the common start. ``peak_memory``: for each rank, the maximum bytes of
    activations in any step. ``device_peak``: the same by the CUDA allocator; None on other devices.

    ``measured``: the step of median time in the first replica, among the last 256, as a schedule
    with measured times (milliseconds). The first step is excluded if there are others, as it
    includes preparations. ``measured_step``: its number. ``planned``: the program's schedule.

    ``notes``: warnings about optimizer options overridden by a checkpoint, the first loss that is
    not finite, microbatches of another size than the profile's, parameters of another model, a peak
    above the plan's memory limit, and a barrier that the plan lacks. ``first_step``: the number of
    the first step, if the run was resumed. ``evaluations``: pairs of a step and the evaluation loss
    after it.
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
    def expected(self) -> ExpectedMakespan | None:
        """Makespans predicted from the spread of the profile's op times; None without a spread."""
        timing = self.measured.timing
        return None if timing is None else ExpectedMakespan.of(self.planned, timing.makespan)

    @property
    def note(self) -> str | None:
        """All notes in one line; None if there are none."""
        return "; ".join(self.notes) or None

    def to_dict(self) -> dict[str, Any]:
        """Returns the document that ``run --json`` prints; losses become None if not finite."""
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
            "expected": None if (expected := self.expected) is None else asdict(expected),
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
    """Trains ``source`` by ``program``; either may be a name (a file, ``module:attribute``).

    Spawns processes on this machine, unless torchrun started this process: then the result is None
    on all processes but the first. If the program averages over replicas, each replica trains on
    its part of ``source.batch`` for the microbatches of all replicas.

    ``callbacks`` are called in this process (under torchrun: in the first process) after each step
    with its :class:`StepRecord`. ``trace_path``: the schedule file to write ``measured`` to. Raises
    LaunchError if a rank fails, InputError for invalid arguments.
    """
    loaded = load_program(program) if isinstance(program, str) else program
    replicas = count_replicas(loaded, settings)
    check_checkpoints(settings)
    named = load_source(source) if isinstance(source, str) else source  # fails once and early
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
    """One rank's part of :func:`run_program`, after ``torch.distributed`` is initialized."""
    torch.manual_seed(settings.seed)
    model = load_source(source) if isinstance(source, str) else source
    replicas = Replicas.of(program, settings.timeout)
    pipeline = make_pipeline(program, model, settings, replicas=replicas)
    loop = TrainingLoop(model, settings, replicas, listener)
    loop.resume(pipeline)
    loop.run(pipeline)
    pipeline.finish()
    own = parameter_bytes(pipeline.modules), _lines(pipeline)
    rows = replicas.gather(pipeline, (*own, pipeline.device_peak))
    sizes, lines, _ = zip(*(cell for row in rows for cell in row), strict=True)
    number, marks = loop.median()
    measured = pipeline.gather_trace(marks)
    barrier_note = pipeline.barrier_note
    pipeline.close()
    records = loop.records
    notes = (
        *loop.notes.values(),
        other_model(program.schedule, {s: n for one in sizes for s, n in one.items()}),
        barrier_note,
        *dict.fromkeys(line for some in lines for line in some),
    )
    return RunResult(
        losses=tuple(record.loss for record in records),
        seconds=tuple(record.seconds for record in records),
        peak_memory=tuple(loop.peaks),
        device_peak=tuple(
            max((peak for *_, peak in column if peak), default=None)
            for column in zip(*rows, strict=True)
        ),
        measured=measured,
        planned=program.schedule,
        notes=tuple(filter(None, notes)),
        replicas=replicas.count,
        first_step=records[0].step,
        evaluations=tuple((r.step, r.eval_loss) for r in records if r.eval_loss is not None),
        measured_step=number,
    )


def _lines(pipeline: Pipeline) -> list[str]:
    """Returns notes on stages that run as modules although graphs were requested."""
    return [f"stage {s} runs eager: {why}" for s, why in pipeline.eager_stages.items()]


def make_pipeline(
    program: Program, model: ModelSource, settings: RunSettings, *, replicas: Replicas
) -> Pipeline:
    """Creates the pipeline of ``model``, with the dtype and device of the settings."""
    device = with_index(torch.device(settings.device))
    place = on_device(device, dtype_of(settings.dtype))
    options: dict[str, Any] = {
        **settings.options(),
        **{"group": replicas.group, "data_group": replicas.data_group, "device": device},
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "all ranks wait before")  # the result's notes contain it
        return Pipeline.from_source(program, model, place=place, **options)
