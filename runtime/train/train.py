"""Training steps of a program on a model source: what ``pipeloom run`` does, and its result."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.formats import dump_schedule, load_program
from pipeloom.ir.formats.atomic_write import write_json
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule

from ..launch.processes import launch
from ..launch.threads import launch_local
from ..measure.plan_deviation import why_far_off
from ..models.by_name import load_source
from ..optim.optimizers import capturable
from ..pipeline.layered_source import as_planned
from ..pipeline.model_source import ModelSource, checked_stages, skips_of
from ..pipeline.pipeline import Pipeline
from ..rank.options import MakeOptimizer
from ..stages.store import Stage, made
from .replicas import ALONE, Replicas, count_replicas
from .settings import DEFAULTS, RunSettings, dtype_of


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    """What a run measured.

    ``losses``: of each step, the mean over its microbatches. ``seconds``: of each step, the
    slowest rank's time from the common start. ``peak_memory``: of each rank, the most bytes of
    activations held in any step; ``device_peak``: the same by the CUDA allocator, else None.
    All of these are over all ``replicas`` of the pipeline.
    ``measured``: the step of median time in the first replica, as a schedule with measured times
    (milliseconds). ``planned``: the program's schedule. ``note``: why the measured one is far
    above or below that, in one line; None where it is not.
    """

    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    peak_memory: tuple[int, ...]
    device_peak: tuple[int | None, ...]
    measured: Schedule
    planned: Schedule
    note: str | None = None
    replicas: int = 1

    def to_dict(self) -> dict[str, Any]:
        """What ``run --json`` prints."""
        return {
            "steps": len(self.losses),
            "replicas": self.replicas,
            "losses": list(self.losses),
            "seconds": list(self.seconds),
            "peak_memory": list(self.peak_memory),
            "device_peak_memory": list(self.device_peak),
            "planned": _figures(self.planned),
            "measured": _figures(self.measured),
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
    trace_path: str | None = None,
) -> RunResult | None:
    """Trains ``source`` by ``program``; each may be given by name (a file, ``module:attribute``).

    Processes are spawned on this machine, unless torchrun started this one: then the result is
    None on all processes but the first. A program that averages over replicas runs in as many, each
    trained on its share of ``source.batch`` for all microbatches of all replicas.
    ``trace_path``: where to write ``measured`` as a schedule file.
    Raises LaunchError where a rank fails, InputError where something given is wrong.
    """
    loaded = load_program(program) if isinstance(program, str) else program
    replicas = count_replicas(loaded, settings)
    if isinstance(source, str):
        load_source(source)  # a wrong name fails here, once and early
    ranks = loaded.schedule.problem.ranks
    results = on_ranks(train, ranks, (loaded, source, settings), settings, replicas)
    result: RunResult | None = results.get(0)
    if result is not None and trace_path is not None:
        write_json(dump_schedule(result.measured), trace_path)
    return result


def on_ranks(
    function: Callable[..., Any],
    ranks: int,
    args: Sequence[Any],
    settings: RunSettings,
    replicas: int = 1,
) -> dict[int, Any]:
    """``function(*args)`` on ranks of the settings' kind; each one's result."""
    if settings.local:
        return launch_local(function, ranks, args, device=settings.device, timeout=settings.timeout)
    return launch(
        function,
        ranks,
        args,
        replicas=replicas,
        backend=settings.backend,
        timeout=settings.timeout,
        message_timeout=settings.message_timeout,
    )


def train(program: Program, source: ModelSource | str, settings: RunSettings) -> RunResult:
    """One rank's part of :func:`run_program`, where ``torch.distributed`` is initialised."""
    torch.manual_seed(settings.seed)
    model = load_source(source) if isinstance(source, str) else source
    replicas = Replicas.of(program, settings.message_timeout)
    pipeline = make_pipeline(program, model, settings, replicas=replicas)
    history = [
        train_step(pipeline, model, step, settings, replicas) for step in range(settings.steps)
    ]
    pipeline.finish()
    rows = replicas.gather(pipeline, (history, pipeline.device_peak))
    runs = [run for row in rows for run, _ in row]
    seconds = [max(run[step].seconds for run in runs) for step in range(settings.steps)]
    median = sorted(range(settings.steps), key=seconds.__getitem__)[settings.steps // 2]
    measured = pipeline.gather_trace(history[median].marks, history[median].averages)
    pipeline.close()
    return RunResult(
        losses=tuple(
            mean_loss([run[step].losses for run in runs]) for step in range(settings.steps)
        ),
        seconds=tuple(seconds),
        peak_memory=tuple(
            max(h.peak for run, _ in of_rank for h in run) for of_rank in zip(*rows, strict=True)
        ),
        device_peak=tuple(
            max((peak for _, peak in of_rank if peak is not None), default=None)
            for of_rank in zip(*rows, strict=True)
        ),
        measured=measured,
        planned=program.schedule,
        note=None if settings.pace else why_far_off(program.schedule, measured),
        replicas=replicas.count,
    )


def mean_loss(losses: Sequence[Sequence[float]]) -> float:
    """Over all microbatches, wherever their last stage ran."""
    values = [loss for row in losses for loss in row]
    return sum(values) / len(values)


def make_pipeline(
    program: Program,
    model: ModelSource,
    settings: RunSettings,
    *,
    like: Pipeline | None = None,
    replicas: Replicas = ALONE,
) -> Pipeline:
    """The pipeline of ``model`` in the settings' dtype and on their device, one of ``replicas``.

    It takes over the modules, optimizers and loss scale of ``like``, which has the same stages on
    each rank.
    """
    device = torch.device(settings.device)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    dtype = dtype_of(settings.dtype)
    count = program.schedule.problem.stages
    model = as_planned(model, program.schedule.problem.profile)
    optimizer = model.optimizer if like is None else _taken_over(like)
    stages: Mapping[int, Stage] | Sequence[Stage]
    if like is None:
        made_here = enumerate(checked_stages(model, count))
        stages = [partial(_placed, s, stage, device, dtype) for s, stage in made_here]
    else:
        stages = like.modules
    options = settings.options()
    options |= {
        "loss": model.loss,
        "optimizer": capturable(optimizer) if settings.cuda_graph else optimizer,
        "tied": model.tied(count),
        "skips": skips_of(model, count),
        "group": replicas.group,
        "data_group": replicas.data_group,
        "device": device,
    }
    if like is not None:
        options["loss_scale"] = like.loss_scale
    return Pipeline(program, stages, **options)


def _taken_over(pipeline: Pipeline) -> MakeOptimizer:
    """Gives parameters the optimizer that steps them in ``pipeline``."""
    by_parameter = {
        id(parameter): optimizer
        for optimizer in pipeline.optimizers.values()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return lambda parameters: by_parameter[id(next(iter(parameters)))]


def _placed(index: int, stage: Stage, device: torch.device, dtype: torch.dtype | None) -> nn.Module:
    return made(stage, index).to(device=device, dtype=dtype)


@dataclass(frozen=True, slots=True)
class StepMeasure:
    """One step on one rank; ``losses`` are those of the microbatches that end here."""

    losses: list[float]
    seconds: float
    peak: int
    marks: list[float]
    averages: dict[int, tuple[float, float]]


def train_step(
    pipeline: Pipeline,
    model: ModelSource,
    step: int,
    settings: RunSettings,
    replicas: Replicas = ALONE,
) -> StepMeasure:
    """One step on this rank, begun by all at once. ``step`` numbers the source's batches."""
    inputs, targets = (
        _on(part, pipeline.device, settings.dtype)
        for part in replicas.batch(model, step, pipeline.microbatches)
    )
    losses: list[Tensor] = []
    replicas.barrier(pipeline)
    start = time.perf_counter()
    pipeline.step(inputs, target=targets, losses=losses, return_outputs=False)
    pipeline.synchronize()
    seconds = time.perf_counter() - start
    values = [loss.item() for loss in losses]
    if settings.progress:
        rows = replicas.gather(pipeline, (values, seconds))
        if pipeline.rank == replicas.index == 0:
            _tell(step, [one for row in rows for one in row])
    return StepMeasure(values, seconds, pipeline.peak_memory, pipeline.marks(), pipeline.averages())


def _tell(step: int, rows: Sequence[tuple[list[float], float]]) -> None:
    """One line a step: where weights are streamed, each rank has losses of its own."""
    loss, seconds = mean_loss([losses for losses, _ in rows]), max(s for _, s in rows)
    sys.stderr.write(f"step {step}: loss {loss:.4f}, {seconds * 1e3:.1f} ms\n")


def _on(tensors: Sequence[Tensor], device: torch.device, dtype: str | None) -> list[Tensor]:
    """On the device, and where they are floating in the dtype that the model runs in."""
    moved = [t.to(device) for t in tensors]
    return [t.to(dtype_of(dtype)) if t.is_floating_point() else t for t in moved]
