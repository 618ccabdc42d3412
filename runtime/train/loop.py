"""The training loop of ``pipeloom run``: steps, evaluations and checkpoints of a pipeline, and the
record of each step.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from ..measure.plan_deviation import other_size, over_the_limit
from ..measure.trace import Marks
from ..pipeline.model_source import BATCH, EVAL_BATCH, ModelSource
from ..pipeline.pipeline import Pipeline
from ..probes.measuring import sequences
from .checkpoint_reader import latest
from .checkpoints import Checkpoints
from .replicas import Replicas
from .settings import RunSettings, dtype_of

KEPT = 256  # steps whose marks are kept: of a long run they would be megabytes a minute


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A training step over all ranks and replicas, as callbacks get it.

    ``step`` counts from 0; ``loss`` is the mean over microbatches; ``seconds`` are the slowest
    rank's; ``tokens``: elements of the inputs; ``grad_norm``: the norm of all gradients before they
    were clipped (with post-validation that of the step before), None where nothing needs it;
    ``peak_memory``: the most bytes of activations on any rank; ``eval_loss``: the mean loss of an
    evaluation that followed the step, else None; ``note``: a line in the first step in which
    microbatches are not the profile's, a rank's memory exceeds the plan's limit, or the loss is no
    number.
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
"""Called with each :class:`StepRecord`."""


class TrainingLoop:
    """One rank's steps of ``source``, one after the other; all ranks of all ``replicas`` have one.

    ``step``: the number of the next; ``records`` of the steps so far, and ``peaks``: the most bytes
    of activations on each rank, the same on all ranks; ``notes``: lines on what the checkpoint's
    optimizers overrule and on what is unlike the plan, by kind; ``listener``: called with each
    record, on the first rank alone.
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
        self._marks = deque[Marks](maxlen=KEPT)

    def resume(self, pipeline: Pipeline) -> None:
        """Goes on from the checkpoint before the first step, if one is asked for.

        Raises InputError where that, or what is to be saved, does not fit the pipeline.
        """
        settings = self._settings
        if settings.resume is not None:
            checkpoints = Checkpoints(pipeline, self._replicas)
            self.step, note = checkpoints.load(latest(settings.resume), settings.seed)
            self.notes |= {} if note is None else {"resumed": note}
        elif settings.save is not None:
            pipeline.state_dict()  # names that cannot be told apart fail here

    def run(self, pipeline: Pipeline) -> None:
        """The steps that are left."""
        while self.step < self._settings.steps:
            record = self._next(pipeline)
            self.records.append(record)
            self._save(pipeline)
            if self._listener is not None and pipeline.rank == self._replicas.index == 0:
                self._listener(record)

    def median(self) -> tuple[int, Marks]:
        """The step of median time, of the last ``KEPT``, and its marks on this rank; the first step
        is left out where there are more: it prepares the others."""
        kept = [*zip(self.records[-KEPT:], self._marks, strict=True)]
        settled = kept[1:] if 1 < len(self.records) == len(kept) else kept
        record, marks = sorted(settled, key=lambda pair: pair[0].seconds)[len(settled) // 2]
        return record.step, marks

    def _next(self, pipeline: Pipeline) -> StepRecord:
        """The next step, begun by all ranks at once, and the evaluation after it."""
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
        norm, note = pipeline.grad_norm, self._note(pipeline, sequences(inputs), peaks, loss)
        return StepRecord(
            self.step - 1, loss, max(seconds), tokens, norm, max(peaks), evaluated, note
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

    def _note(
        self, pipeline: Pipeline, size: int | None, peaks: Sequence[int], loss: float
    ) -> str | None:
        """Lines on what was not noted in an earlier step."""
        finite = math.isfinite(loss)
        found = {
            "loss": None if finite else f"the loss is {loss} in step {self.step - 1}",
            "size": other_size(pipeline.program.schedule, size),
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
    """The mean over all microbatches, wherever their last stage ran: no order of them shows in a
    digit."""
    values = [loss for row in losses for loss in row]
    return math.fsum(values) / len(values)
