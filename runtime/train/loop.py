"""The training loop of ``pipeloom run``: steps, evaluations and checkpoints, with their records."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from ..measure.memory_limit import over_the_limit
from ..pipeline.model_source import BATCH, EVAL_BATCH, ModelSource
from ..pipeline.pipeline import Pipeline
from .checkpoint_reader import latest
from .checkpoints import Checkpoints
from .replicas import Replicas
from .settings import RunSettings, dtype_of

KEPT = 256  # steps whose times are kept; all of a long run's would need too much memory


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Measurements of one training step over all ranks and replicas, as passed to callbacks.

    ``step``: its number, from 0. ``loss``: the mean over all microbatches. ``seconds``: the time of
    the slowest rank. ``tokens``: the number of elements of the inputs. ``grad_norm``: the norm of
    all gradients before clipping (with post-validation, that of the previous step); None if neither
    clipping nor loss scaling needs it. ``peak_memory``: the maximum bytes of activations on any
    rank. ``eval_loss``: the mean loss of the evaluation after the step; None without one. ``note``:
    a warning, only in the first step to which it applies: microbatches whose size differs from
    the profile's, a rank's memory above the plan's limit, or a loss that is not finite; else None.
    """

    step: int
    loss: float
    seconds: float
    tokens: int
    grad_norm: float | None
    peak_memory: int
    eval_loss: float | None = None
    note: str | None = None


Listener: TypeAlias = Callable[[Any], object]
"""A function that is called with the :class:`StepRecord` of each step; its result is ignored."""


class TrainingLoop:
    """Runs the training steps of ``source`` on one rank; each rank of each replica has one.

    ``listener``: called with the record of each step, only on the first rank of the first replica.

    ``step``: the number of the next step. ``records``: the records of all steps so far. ``peaks``:
    for each rank, the maximum bytes of activations in any step and replica; equal on all ranks.
    ``notes``: warnings by kind, about optimizer options overridden by the checkpoint and about
    deviations from the plan.
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
        self.notes: dict[str, str] = {}
        self.peaks: list[int] = []
        self.records: list[StepRecord] = []
        self._marks = deque[list[float]](maxlen=KEPT)

    def resume(self, pipeline: Pipeline) -> None:
        """Loads the checkpoint from which to resume, if the settings contain one.

        Called before the first step. Raises InputError if the checkpoint is not one of this model
        and its optimizers, or if the pipeline's state cannot be saved, but the settings request it.
        """
        settings = self._settings
        if settings.resume is not None:
            checkpoints = Checkpoints(pipeline, self._replicas)
            self.step = checkpoints.load(latest(settings.resume), settings.seed)
        elif settings.save is not None:
            pipeline.state_dict()  # raises for ambiguous names

    def run(self, pipeline: Pipeline) -> None:
        """Runs the remaining steps of the run, with evaluations and checkpoints."""
        while self.step < self._settings.steps:
            record = self._next(pipeline)
            self.records.append(record)
            self._save(pipeline)
            if self._listener is not None and pipeline.rank == self._replicas.index == 0:
                self._listener(record)

    def median(self) -> tuple[int, list[float]]:
        """Returns the number of the step with the median time, and its measured times on this rank.

        Only the last :data:`KEPT` steps count, without the run's first one if there are others, as
        that includes preparations.
        """
        kept = [*zip(self.records[-KEPT:], self._marks, strict=True)]
        settled = kept[1:] if 1 < len(self.records) == len(kept) else kept
        record, marks = sorted(settled, key=lambda pair: pair[0].seconds)[len(settled) // 2]
        return record.step, marks

    def _next(self, pipeline: Pipeline) -> StepRecord:
        """Runs the next step, which all ranks start together, and returns its record.

        If an evaluation is due, runs it after the step.
        """
        inputs, targets = self._batch(pipeline, self.step, BATCH)
        losses: list[Tensor] = []
        self._replicas.barrier(pipeline)
        start = time.perf_counter()
        pipeline.step(inputs, target=targets, losses=losses, return_outputs=False)
        pipeline.synchronize()
        own = time.perf_counter() - start, pipeline.peak_memory, [loss.item() for loss in losses]
        self._marks.append(pipeline.marks())
        self.step += 1
        evaluated = self._evaluated(pipeline) if self._due(self._settings.eval_every) else None
        rows = self._replicas.gather(pipeline, own)
        seconds, _, every = zip(*(cell for row in rows for cell in row), strict=True)
        peaks = [max(peak for _, peak, _ in column) for column in zip(*rows, strict=True)]
        self.peaks = [*map(max, peaks, self.peaks or peaks)]
        loss = mean_loss(every)
        tokens = self._replicas.count * sum(x.numel() for x in inputs)
        norm, note = pipeline.grad_norm, self._note(pipeline, peaks, loss)
        return StepRecord(
            self.step - 1, loss, max(seconds), tokens, norm, max(peaks), evaluated, note
        )

    def _batch(self, pipeline: Pipeline, step: int, method: str) -> list[list[Tensor]]:
        """Returns ``[inputs, targets]`` of a step in this replica, each one tensor per microbatch.

        Tensors are on the pipeline's device, floating-point ones in the dtype of the settings.
        ``method``: the source's method that provides them.
        """
        dtype, device = dtype_of(self._settings.dtype), pipeline.device
        given = self._replicas.batch(self._source, step, pipeline.microbatches, method)
        return [
            [t.to(device, dtype if t.is_floating_point() else None) for t in part] for part in given
        ]

    def _evaluated(self, pipeline: Pipeline) -> float:
        """Runs the evaluation after the last step, and returns its mean loss over all replicas."""
        inputs, targets = self._batch(pipeline, self.step, EVAL_BATCH)
        losses: list[Tensor] = []
        pipeline.eval(inputs, target=targets, losses=losses, return_outputs=False)
        rows = self._replicas.gather(pipeline, [loss.item() for loss in losses])
        return mean_loss([losses for row in rows for losses in row])

    def _note(self, pipeline: Pipeline, peaks: Sequence[int], loss: float) -> str | None:
        """Returns new warnings about the last step in one line, or None if there are none.

        A kind of warning is new if no earlier step had one. ``peaks``: for each rank, the peak
        bytes of activations. ``loss``: the step's.
        """
        finite = math.isfinite(loss)
        found = {
            "loss": None if finite else f"the loss is {loss} in step {self.step - 1}",
            "memory": over_the_limit(pipeline.program, peaks),
        }
        new = {kind: line for kind, line in found.items() if line and kind not in self.notes}
        self.notes |= new
        return "; ".join(new.values()) or None

    def _due(self, every: int | None) -> bool:
        return every is not None and self.step % every == 0

    def _save(self, pipeline: Pipeline) -> None:
        settings = self._settings
        if settings.save is not None and (self._due(settings.every) or self.step == settings.steps):
            Checkpoints(pipeline, self._replicas).save(settings.save, self.step)


def mean_loss(losses: Sequence[Sequence[float]]) -> float:
    """Returns the mean of all numbers in the sequences that ``losses`` contains.

    The sum is rounded only once, so the result does not depend on the order.
    """
    values = [loss for row in losses for loss in row]
    return math.fsum(values) / len(values)
