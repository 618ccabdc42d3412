"""Training that measures itself: every few steps the plan is made anew from the times of the last
ones.

Another program takes over the modules and optimizers in the same processes: training goes on as if
nothing had happened. It stays where its steps are measured to be shorter::

    steps under A │ plan B from A's traces │ steps under B │ shorter? B stays, else A again │ ...

Where batches are sequences to be packed each step has a program of its own, and what is planned
anew is what sequences cost::

    pack, plan, step │ pack, plan, step │ ... │ costs of lengths from these traces │ pack, plan ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule, Updates

from ..models.by_name import load_source
from ..pipeline.model_source import ModelSource
from .loop import Listener, StepPlan, TrainingLoop
from .packed import packing_of
from .replicas import averages
from .settings import RunSettings
from .train import on_ranks
from .tune_packed import PackedSteps, Repack
from .tuned_steps import Trial, TunedSteps, TuneResult

# the traces of the last steps, with the plan's pairs, to a program that may be better (None: the
# one that ran is as good)
Replan: TypeAlias = Callable[[Sequence[Schedule]], Program | None]

TRACES = 5  # of the last steps, at most


def tune_program(
    program: Program,
    source: ModelSource | str,
    settings: RunSettings,
    every: int,
    planner: Replan | Repack,
    *,
    callbacks: Sequence[Listener | str] = (),
) -> TuneResult | None:
    """Trains ``source`` for ``settings.steps``, and plans anew after each ``every`` of them.

    ``every`` counts the first step under a program, which prepares buffers and is not compared:
    at least 2. Processes are started as by ``run_program``; ``planner`` is called on rank 0, while
    the others wait: a :class:`Repack` before each step, for a source that has ``lengths``. None on
    all ranks but 0 under torchrun. ``callbacks`` are told of each step, as by ``run_program``.
    Raises InputError for programs that :func:`check_tunable` refuses.
    """
    if every < 2:
        raise InputError(f"every: expected at least 2 steps, got {every}")
    check_tunable(program)
    if packing_of(program) is not None and not isinstance(planner, Repack):
        raise InputError(
            "planner: expected one that packs, as the program's microbatches are packed"
        )
    wanted = {
        "save": "run alone saves and evaluates",
        "resume": "run alone saves and evaluates",
        "eval_every": "run alone saves and evaluates",
    }
    for name, why in wanted.items():
        if value := getattr(settings, name):
            raise InputError(f"{name}: expected none: {why}, got {value}")
    if isinstance(source, str):
        load_source(source)
    ranks = program.schedule.problem.ranks
    args = program, source, settings, every, planner
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
    planner: Replan | Repack,
    *heard: Listener,
) -> TuneResult:
    """One rank's part of :func:`tune_program`."""
    torch.manual_seed(settings.seed)
    model = load_source(source) if isinstance(source, str) else source
    loop = TrainingLoop(model, settings, listener=next(iter(heard), None))
    if isinstance(planner, Repack):
        return PackedSteps(program, model, settings, planner, loop).run(every)
    return _Tuning(program, model, settings, planner, loop).run(every)


class _Tuning(TunedSteps):
    """Steps under one program, then under another that was planned from their traces."""

    def __init__(
        self,
        program: Program,
        model: ModelSource,
        settings: RunSettings,
        replan: Replan,
        loop: TrainingLoop,
    ) -> None:
        super().__init__(program, model, settings, loop)
        self._replan = replan

    def run(self, every: int) -> TuneResult:
        best = self._first
        traces, shortest = self._steps(best, every)
        self._tried(best, shortest, kept=True)
        while self._left:
            candidate = self._candidate(best, traces)
            latest, median = self._steps(candidate, every)
            kept = median < shortest
            if kept or candidate is best:
                best, traces, shortest = candidate, latest, median
            self._tried(candidate, median, kept)
        return self._result(best)

    def _steps(self, program: Program, count: int) -> tuple[list[Schedule], float]:
        """Runs ``count`` steps, or what is left: the traces of the last ones, their median time."""
        runs = self._loop.run(self._pipeline, count, StepPlan(program))
        self._pipeline.finish()
        compared = runs[1:] or runs  # the first one prepares buffers
        traces = [self._pipeline.gather_trace(run.marks) for run in compared[-TRACES:]]
        return traces, self._seconds(len(compared))

    def _candidate(self, best: Program, traces: Sequence[Schedule]) -> Program:
        """The program that rank 0 finds for ``traces``; the best one where it finds none.

        It is told which ops the plan runs at once: traces have them one by one, and would seem
        longer.
        """
        told = [replace(trace, pairs=best.schedule.pairs) for trace in traces]
        with self._pipeline.together():
            found = self._replan(told) if self._pipeline.rank == 0 else None
        return self._pipeline.gather(found)[0] or best

    def _tried(self, program: Program, median: float, kept: bool) -> None:
        timing = program.schedule.timing
        planned = None if timing is None else timing.makespan
        self._trials.append(Trial(self._loop.step, planned, median, kept))
