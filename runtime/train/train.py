"""Training steps of a program on a model source: what ``pipeloom run`` does, and its result."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.spread import ExpectedMakespan
from pipeloom.ir.formats import dump_schedule, load_program
from pipeloom.ir.formats.atomic_write import write_json
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.model.weight_coverage import WeightCoverage, joined

from ..device import with_index
from ..launch.processes import launch_ranks
from ..measure.plan_deviation import (
    other_model,
    other_size,
    over_the_limit,
    parameter_bytes,
    why_far_off,
)
from ..models.by_name import load_source
from ..pipeline.layered_source import as_planned
from ..pipeline.model_source import (
    ModelSource,
    check_cut,
    check_evaluation,
    checked_stages,
    options_of,
)
from ..pipeline.pipeline import Pipeline
from ..stages.store import Stage, made
from .callbacks import listening
from .checkpoints import check_checkpoints
from .loop import KEPT, Listener, TrainingLoop, finite, lost_loss
from .replicas import Replicas, count_replicas
from .settings import DEFAULTS, RunSettings, dtype_of


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """Measurements of a run.

    ``losses``: of each step, the mean over its microbatches. ``seconds``: of each step, the
    slowest rank's time from the common start. ``peak_memory``: of each rank, the most bytes of
    activations held in any step; ``device_peak``: the same by the CUDA allocator, else None.
    All of these are over all ``replicas`` of the pipeline.
    ``measured``: the step of median time in the first replica, of the last 256, as a schedule with
    measured times (milliseconds), the first step left out where there are more: it prepares the
    others.
    ``measured_step``: its number. ``planned``: the program's schedule. ``notes``: what a
    checkpoint's optimizers overrule, the first loss that is no number, microbatches of another size
    than the profile's, parameters of another model, a peak above the plan's memory limit, a barrier
    that the plan is without, and why the measured schedule is far above or below the planned one.
    ``first_step``: the number of the first of these steps, where the run was resumed.
    ``evaluations``: pairs of a step that was evaluated and its loss there.
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
    coverage: tuple[WeightCoverage, ...] = ()
    measured_step: int = 0

    @property
    def expected(self) -> ExpectedMakespan | None:
        """The makespans that the spread of the profile's op times predicts; None without one."""
        timing = self.measured.timing
        return None if timing is None else ExpectedMakespan.of(self.planned, timing.makespan)

    @property
    def note(self) -> str | None:
        """All notes in one line; None where there is nothing to say."""
        return "; ".join(self.notes) or None

    def to_dict(self) -> dict[str, Any]:
        """The document that ``run --json`` prints; None for a loss that is NaN or infinite."""
        return {
            "steps": len(self.losses),
            "first_step": self.first_step,
            "replicas": self.replicas,
            "losses": [finite(loss) for loss in self.losses],
            "evaluations": [[step, finite(loss)] for step, loss in self.evaluations],
            "seconds": list(self.seconds),
            "peak_memory": list(self.peak_memory),
            "device_peak_memory": list(self.device_peak),
            "planned": _figures(self.planned),
            "measured": _figures(self.measured),
            "measured_step": self.measured_step,
            "expected": None if (expected := self.expected) is None else asdict(expected),
            "coverage": {str(one.stage): one.to_dict() for one in self.coverage},
            "note": self.note,
        }


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
    """Trains ``source`` by ``program``; each may be given by name (a file, ``module:attribute``).

    Processes are spawned on this machine, unless torchrun started this one: then the result is
    None on all processes but the first. A program that averages over replicas runs in as many, each
    trained on its share of ``source.batch`` for all microbatches of all replicas.
    ``callbacks`` are called here after each step, with its :class:`StepRecord`; under torchrun in
    the first process. ``trace_path``: where to write ``measured`` as a schedule file.
    Raises LaunchError where a rank fails, InputError where something given is wrong.
    """
    loaded = load_program(program) if isinstance(program, str) else program
    replicas = count_replicas(loaded, settings)
    check_checkpoints(settings)
    named = load_source(source) if isinstance(source, str) else source  # fails once and early
    if settings.eval_every is not None:
        check_evaluation(named)
    problem = loaded.schedule.problem
    check_cut(as_planned(named, problem.profile), problem.stages)
    with listening(callbacks, settings.steps if settings.progress else None) as listener:
        results = launch_ranks(
            train,
            problem.ranks,
            (loaded, source, settings),
            replicas=replicas,
            device=settings.device,
            timeout=settings.timeout,
            message_timeout=settings.patience,
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
    """One rank's part of :func:`run_program`, where ``torch.distributed`` is initialised."""
    torch.manual_seed(settings.seed)
    model = load_source(source) if isinstance(source, str) else source
    replicas = Replicas.of(program, settings.patience)
    pipeline = make_pipeline(program, model, settings, replicas=replicas)
    loop = TrainingLoop(model, settings, replicas, listener)
    loop.resume(pipeline)
    first = loop.step
    history = loop.run(pipeline)
    pipeline.finish()
    own = parameter_bytes(pipeline.modules), pipeline.coverage, pipeline.device_peak
    ends = pipeline.eager_stages, pipeline.remade_graphs
    found = [row for rows in replicas.gather(pipeline, (*own, *ends)) for row in rows]
    sizes, coverage, device_peaks, eager, remade = zip(*found, strict=True)
    seconds = [record.seconds for record in loop.records]
    settled = range(max(min(1, len(history) - 1), len(history) - KEPT), len(history))
    median = sorted(settled, key=seconds.__getitem__)[len(settled) // 2]
    measured = pipeline.gather_trace(history[median].marks, history[median].averages)
    pipeline.close()
    ranks = len(loop.peaks)
    notes = (
        loop.note,
        lost_loss([record.loss for record in loop.records], loop.records[0].step),
        other_size(program.schedule, history[0].sequences),
        other_model(program.schedule, {s: n for one in sizes for s, n in one.items()}),
        over_the_limit(program, loop.peaks),
        pipeline.barrier_note,
        _of_stages(" runs eager: ", eager),
        _of_stages(": ", remade),
        None if settings.pace else why_far_off(program.schedule, measured),
    )
    return RunResult(
        losses=tuple(record.loss for record in loop.records),
        seconds=tuple(seconds),
        peak_memory=tuple(loop.peaks),
        device_peak=tuple(
            max(filter(None, device_peaks[rank::ranks]), default=None) for rank in range(ranks)
        ),
        measured=measured,
        planned=program.schedule,
        notes=tuple(filter(None, notes)),
        replicas=replicas.count,
        first_step=first,
        evaluations=tuple((r.step, r.eval_loss) for r in loop.records if r.eval_loss is not None),
        coverage=tuple(joined(coverage[:ranks]).values()),
        measured_step=first + median,
    )


def _of_stages(words: str, rows: Sequence[Mapping[int, str]]) -> str | None:
    """The stages of which there is something to say, with it after ``words``."""
    found = {s: why for row in rows for s, why in row.items()}
    texts = [f"stage {s}{words}{why}" for s, why in sorted(found.items())]
    return "; ".join(texts) or None


def make_pipeline(
    program: Program, model: ModelSource, settings: RunSettings, *, replicas: Replicas
) -> Pipeline:
    """The pipeline of ``model`` in the settings' dtype and on their device, one of ``replicas``."""
    device = with_index(torch.device(settings.device))
    dtype = dtype_of(settings.dtype)
    count = program.schedule.problem.stages
    model = as_planned(model, program.schedule.problem.profile)
    made_here = enumerate(checked_stages(model, count))
    stages = [partial(_placed, s, stage, device, dtype) for s, stage in made_here]
    options = options_of(model, count)
    options.update(settings.options())
    options |= {"group": replicas.group, "data_group": replicas.data_group, "device": device}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "all ranks wait before")  # the result's notes have it
        return Pipeline(program, stages, **options)


def _placed(index: int, stage: Stage, device: torch.device, dtype: torch.dtype | None) -> nn.Module:
    return made(stage, index).to(device=device, dtype=dtype)
