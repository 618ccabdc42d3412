"""Training that measures itself: every few steps the plan is made anew from the times of the last
ones.

A new program takes over the modules and optimizers of the old one, in the same processes: training
goes on as if nothing had happened. It stays where its steps are measured to be shorter::

    steps under A │ plan B from A's traces │ steps under B │ shorter? B stays, else A again │ ...
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import torch

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule, Updates

from ..models.by_name import load_source
from ..pipeline.model_source import ModelSource
from ..pipeline.pipeline import Pipeline
from .loop import Listener, TrainingLoop
from .replicas import averages
from .settings import RunSettings
from .train import make_pipeline, on_ranks

# the traces of the last steps, with the plan's pairs, to a program that may be better (None: the
# one that ran is as good)
Replan: TypeAlias = Callable[[Sequence[Schedule]], Program | None]

TRACES = 5  # of the last steps, at most


@dataclass(frozen=True, slots=True)
class Trial:
    """Steps under one program, the last of them ``steps``.

    ``planned``: its makespan in milliseconds, None where the program does not say; ``seconds``: the
    median that was measured; ``kept``: whether that is the shortest so far.
    """

    steps: int
    planned: float | None
    seconds: float
    kept: bool


@dataclass(frozen=True, slots=True, eq=False)
class TuneResult:
    """``program`` is the one that was fastest. ``losses`` and ``seconds`` are of each step."""

    program: Program
    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    trials: tuple[Trial, ...]

    def to_dict(self) -> dict[str, Any]:
        """The document that ``tune --json`` prints, but for where the schedule was written."""
        return {
            "steps": len(self.losses),
            "losses": list(self.losses),
            "seconds": list(self.seconds),
            "trials": [asdict(trial) for trial in self.trials],
        }


def tune_program(
    program: Program,
    source: ModelSource | str,
    settings: RunSettings,
    every: int,
    replan: Replan,
    *,
    callbacks: Sequence[Listener | str] = (),
) -> TuneResult | None:
    """Trains ``source`` for ``settings.steps``, and plans anew after each ``every`` of them.

    ``every`` counts the first step under a program, which prepares buffers and is not compared:
    at least 2. Processes are started as by ``run_program``; ``replan`` is called on rank 0, while
    the others wait. None on all ranks but 0 under torchrun. ``callbacks`` are told of each step, as
    by ``run_program``. Raises InputError for programs that :func:`check_tunable` refuses.
    """
    if every < 2:
        raise InputError(f"every: expected at least 2 steps, got {every}")
    check_tunable(program)
    for name in ("save", "resume", "eval_every"):
        value = getattr(settings, name)
        if value is not None:
            raise InputError(f"{name}: expected none: run alone saves and evaluates, got {value}")
    if isinstance(source, str):
        load_source(source)
    ranks = program.schedule.problem.ranks
    args = program, source, settings, every, replan
    results = on_ranks(tune, ranks, args, settings, callbacks=callbacks)
    result: TuneResult | None = results.get(0)
    return result


def check_tunable(program: Program) -> None:
    """Raises InputError, naming the key, for a program that cannot be replaced while it trains."""
    first = averages(program)
    wanted = {
        "schedule: passing: expected activations, got streamed weights": (
            program.schedule.problem.placement.passing is Passing.ACTIVATIONS
        ),
        "schedule: updates: expected a program that steps once an iteration, got one that steps "
        "after each microbatch": program.schedule.updates is Updates.ITERATION,
        "instructions: expected those of one pipeline, which alone can be tuned, got averages over "
        f"replicas, '{first}' (compile without --data-parallel)": first is None,
    }
    for line, there in wanted.items():
        if not there:
            raise InputError(line)


def tune(
    program: Program,
    source: ModelSource | str,
    settings: RunSettings,
    every: int,
    replan: Replan,
    *heard: Listener,
) -> TuneResult:
    """One rank's part of :func:`tune_program`."""
    torch.manual_seed(settings.seed)
    model = load_source(source) if isinstance(source, str) else source
    loop = TrainingLoop(model, settings, listener=next(iter(heard), None))
    return _Tuning(program, model, settings, replan, loop).run(every)


class _Tuning:
    """One rank's side of a tuned run; all ranks come to the same decisions."""

    def __init__(
        self,
        program: Program,
        model: ModelSource,
        settings: RunSettings,
        replan: Replan,
        loop: TrainingLoop,
    ) -> None:
        self._model, self._settings, self._replan, self._loop = model, settings, replan, loop
        self._best = make_pipeline(program, model, settings)
        self._trials: list[Trial] = []

    def run(self, every: int) -> TuneResult:
        traces, shortest = self._steps(self._best, every)
        self._tried(self._best, shortest, kept=True)
        while self._left:
            candidate = self._candidate(traces)
            latest, median = self._steps(candidate, every)
            kept = median < shortest
            if candidate is self._best:
                traces, shortest = latest, median
            elif kept:
                self._best.close()
                self._best, traces, shortest = candidate, latest, median
            else:
                self._best.take_loss_scale(candidate)
                candidate.close()
            self._tried(candidate, median, kept)
        self._best.close()
        records = self._loop.records
        return TuneResult(
            self._best.program,
            tuple(record.loss for record in records),
            tuple(record.seconds for record in records),
            tuple(self._trials),
        )

    @property
    def _left(self) -> int:
        return self._settings.steps - self._loop.step

    def _steps(self, pipeline: Pipeline, count: int) -> tuple[list[Schedule], float]:
        """Runs ``count`` steps, or what is left: the traces of the last ones, their median time."""
        runs = self._loop.run(pipeline, count)
        pipeline.finish()
        compared = runs[1:] or runs  # the first one prepares buffers
        traces = [pipeline.gather_trace(run.marks) for run in compared[-TRACES:]]
        seconds = [record.seconds for record in self._loop.records[-len(compared) :]]
        return traces, statistics.median(seconds)

    def _candidate(self, traces: Sequence[Schedule]) -> Pipeline:
        """A pipeline by the program that rank 0 finds for ``traces``; the best one where it finds
        none.

        It is told which ops the plan runs at once: traces have them one by one, and would seem
        longer.
        """
        pairs = self._best.program.schedule.pairs
        told = [replace(trace, pairs=pairs) for trace in traces]
        found = self._replan(told) if self._best.rank == 0 else None
        program = self._best.gather(found)[0]
        if program is None:
            return self._best
        return make_pipeline(program, self._model, self._settings, like=self._best)

    def _tried(self, pipeline: Pipeline, median: float, kept: bool) -> None:
        timing = pipeline.program.schedule.timing
        planned = None if timing is None else timing.makespan
        self._trials.append(Trial(self._loop.step, planned, median, kept))
