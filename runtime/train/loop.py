"""The training loop of ``pipeloom run``: steps, evaluations and checkpoints of a pipeline, and what
is told of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from torch import Tensor

from pipeloom.ir.model.program import Program

from ..measure.plan_deviation import other_size, over_the_limit
from ..pipeline.model_source import BATCH, EVAL_BATCH, ModelSource
from ..pipeline.pipeline import Pipeline
from ..probes.measuring import sequences
from .checkpoint_files import latest
from .checkpoints import Checkpoints
from .replicas import Replicas
from .settings import RunSettings, dtype_of

KEPT = 256  # steps whose marks are kept: of a long run they would be megabytes a minute


def finite(loss: float) -> float | None:
    """``loss`` as JSON has it: None where it is no number."""
    return loss if math.isfinite(loss) else None


def lost_loss(losses: Sequence[float], first: int = 0) -> str | None:
    """A line on the first step whose loss is no number; ``first``: the number of the first one."""
    found = next((k for k, loss in enumerate(losses) if not math.isfinite(loss)), None)
    return None if found is None else f"the loss is {losses[found]} in step {first + found}"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A training step as callbacks are told of it, over all ranks and replicas.

    ``step`` counts from 0; ``loss`` is the mean over microbatches; ``seconds`` are the slowest
    rank's; ``tokens``: elements of the inputs; ``grad_norm``: the norm of all gradients before they
    were clipped (with post-validation that of the step before), None where nothing needs it;
    ``peak_memory``: the most bytes of activations on any rank; ``eval_loss``: the mean loss of an
    evaluation that followed the step, else None; ``note``: a line, in the first step where
    microbatches are not the profile's, and in the first one in which a rank's memory exceeds the
    plan's limit.
    """

    step: int
    loss: float
    seconds: float
    tokens: int
    grad_norm: float | None
    peak_memory: int
    eval_loss: float | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Compiling:
    """The functions of graphs that the first rank has compiled, ``done`` of ``count``."""

    done: int
    count: int


Listener: TypeAlias = Callable[[Any], object]
"""Told of each :class:`StepRecord`; progress of :class:`Compiling`, too."""


@dataclass(frozen=True, slots=True)
class StepMeasure:
    """One step on one rank; ``losses`` are those of the microbatches that end here; ``sequences``:
    in the first microbatch, None where that is not known."""

    losses: list[float]
    seconds: float
    peak: int
    tokens: int
    marks: list[float]
    averages: dict[int, tuple[float, float]]
    sequences: int | None


class TrainingLoop:
    """One rank's steps of ``source``, one after the other; all ranks of all ``replicas`` have one.

    ``step``: the number of the next; ``note``: where the checkpoint's optimizers overrule the
    source's; ``records``: of the steps so far, and ``peaks``: the most bytes of activations on each
    rank, the same on all ranks; ``listener``: told of each step, on the first rank alone.
    """

    def __init__(
        self,
        source: ModelSource,
        settings: RunSettings,
        replicas: Replicas,
        listener: Listener | None = None,
    ) -> None:
        self._source, self._settings, self._replicas = source, settings, replicas
        self._listener = listener
        self.step = 0
        self.note: str | None = None
        self._exceeds = False
        self.peaks: list[int] = []
        self.records: list[StepRecord] = []

    def resume(self, pipeline: Pipeline) -> None:
        """Goes on from the checkpoint before the first step, if one is asked for.

        Raises InputError where that, or what is to be saved, does not fit the pipeline.
        """
        settings = self._settings
        if settings.resume is not None:
            checkpoints = Checkpoints(pipeline, self._replicas)
            self.step, self.note = checkpoints.load(latest(settings.resume), settings.seed)
        elif settings.save is not None:
            pipeline.state_dict()  # names that cannot be told apart fail here

    def run(self, pipeline: Pipeline) -> list[StepMeasure]:
        """The steps that are left; what each took, with marks and averages of the last ``KEPT``
        only."""
        listener = self._listener
        compiles = self._settings.stages_as == "inductor"
        if compiles and listener is not None and pipeline.rank == self._replicas.index == 0:
            pipeline.tell_graphs(lambda done, count: listener(Compiling(done, count)))
        measures: list[StepMeasure] = []
        while self.step < self._settings.steps:
            measures.append(self._next(pipeline))
            if len(measures) > KEPT:
                old = -KEPT - 1
                measures[old] = replace(measures[old], marks=[], averages={})
        return measures

    def _next(self, pipeline: Pipeline) -> StepMeasure:
        measure = self._measured(pipeline)
        self.step += 1
        evaluated = self._evaluated(pipeline) if self._due(self._settings.eval_every) else None
        rows = self._replicas.gather(
            pipeline, (measure.losses, measure.seconds, measure.peak, measure.tokens)
        )
        cells = [cell for row in rows for cell in row]
        peaks = [max(peak for _, _, peak, _ in column) for column in zip(*rows, strict=True)]
        self.peaks = [*map(max, peaks, self.peaks or peaks)]
        record = StepRecord(
            self.step - 1,
            mean_loss([losses for losses, *_ in cells]),
            max(seconds for _, seconds, *_ in cells),
            self._replicas.count * measure.tokens,
            pipeline.grad_norm,
            max(peaks),
            evaluated,
            self._note(pipeline.program, measure.sequences, peaks),
        )
        self.records.append(record)
        self._save(pipeline)
        if self._listener is not None and pipeline.rank == self._replicas.index == 0:
            self._listener(record)
        return measure

    def _measured(self, pipeline: Pipeline) -> StepMeasure:
        """The next step on this rank, begun by all at once."""
        inputs, targets = self._batch(pipeline, self.step, BATCH)
        losses: list[Tensor] = []
        self._replicas.barrier(pipeline)
        start = time.perf_counter()
        pipeline.step(inputs, target=targets, losses=losses, return_outputs=False)
        pipeline.synchronize()
        seconds = time.perf_counter() - start
        return StepMeasure(
            [loss.item() for loss in losses],
            seconds,
            pipeline.peak_memory,
            sum(x.numel() for x in inputs),
            pipeline.marks(),
            pipeline.averages(),
            sequences(inputs),
        )

    def _batch(self, pipeline: Pipeline, step: int, method: str) -> list[list[Tensor]]:
        """Inputs and targets on the device, floating ones in the dtype that the model runs in."""
        dtype, device = dtype_of(self._settings.dtype), pipeline.device
        given = self._replicas.batch(self._source, step, pipeline.microbatches, method)
        return [
            [t.to(device, dtype if t.is_floating_point() else None) for t in part] for part in given
        ]

    def _evaluated(self, pipeline: Pipeline) -> float:
        """The mean loss of what the source is evaluated on after so many steps."""
        inputs, targets = self._batch(pipeline, self.step, EVAL_BATCH)
        losses: list[Tensor] = []
        pipeline.eval(inputs, target=targets, losses=losses, return_outputs=False)
        rows = self._replicas.gather(pipeline, [loss.item() for loss in losses])
        return mean_loss([losses for row in rows for losses in row])

    def _note(self, program: Program, size: int | None, peaks: Sequence[int]) -> str | None:
        other = None if self.records else other_size(program.schedule, size)
        exceeded = None if self._exceeds else over_the_limit(program, peaks)
        self._exceeds = self._exceeds or exceeded is not None
        return "; ".join(filter(None, (other, exceeded))) or None

    def _due(self, every: int | None) -> bool:
        return every is not None and self.step % every == 0

    def _save(self, pipeline: Pipeline) -> None:
        settings = self._settings
        if settings.save is not None and (self._due(settings.every) or self.step == settings.steps):
            Checkpoints(pipeline, self._replicas).save(settings.save, self.step)


def mean_loss(losses: Sequence[Sequence[float]]) -> float:
    """The mean over all microbatches, wherever their last stage ran: no order of them shows in a
    digit."""
    values = [loss for row in losses for loss in row]
    return math.fsum(values) / len(values)
