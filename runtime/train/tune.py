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

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule, Updates

from ..models.by_name import load_source
from ..pipeline.model_source import ModelSource, lengths_at, naming_lengths
from .loop import Listener, StepPlan, TrainingLoop
from .replicas import averages
from .settings import RunSettings
from .train import make_pipeline, on_ranks

# the traces of the last steps, with the plan's pairs, to a program that may be better (None: the
# one that ran is as good)
Replan: TypeAlias = Callable[[Sequence[Schedule]], Program | None]

TRACES = 5  # of the last steps, at most


@runtime_checkable
class Repack(Protocol):
    """A planner of packed steps: ``plan`` makes the program of what the source's ``lengths`` gives,
    and the sequences of each of its microbatches; ``learn`` takes the traces of the plans since it
    was called last."""

    def plan(self, batch: Any) -> tuple[Program, Sequence[Sequence[int]]]: ...

    def learn(self, traces: Sequence[Schedule]) -> None: ...

    def learnt(self) -> tuple[Program, Mapping[str, Any] | None]:
        """The first program by the costs that were measured, and the shares that go with them."""
        ...


@dataclass(frozen=True, slots=True)
class Trial:
    """Steps under one program, or of a program each, the last of them ``steps``.

    ``planned``: its makespan in milliseconds, None where the program does not say; ``seconds``: the
    median that was measured; ``kept``: whether that is the shortest so far. Of steps of a program
    each ``planned`` is the median, and ``traced`` that of the measured makespans, without the
    change of programs; ``kept`` is true.
    """

    steps: int
    planned: float | None
    seconds: float
    kept: bool
    traced: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class TuneResult:
    """``program`` is the one that was fastest. ``losses`` and ``seconds`` are of each step.

    Where batches were packed it is the first program by the costs that were measured, and
    ``attention`` what goes with its profile into a lengths file.
    """

    program: Program
    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    trials: tuple[Trial, ...]
    attention: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The document that ``tune --json`` prints, but for where the schedule was written."""
        return {
            "steps": len(self.losses),
            "losses": list(self.losses),
            "seconds": list(self.seconds),
            "trials": [asdict(trial) for trial in self.trials],
            **({} if self.attention is None else {"attention": dict(self.attention)}),
        }


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
    wanted = {
        "save": "run alone saves and evaluates",
        "resume": "run alone saves and evaluates",
        "eval_every": "run alone saves and evaluates",
        "cuda_graph": "a graph is of one program",
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
        return _Packing(program, model, settings, planner, loop).run(every)
    return _Tuning(program, model, settings, planner, loop).run(every)


class _Steps:
    """One rank's side of a tuned run; all ranks come to the same decisions."""

    def __init__(
        self, program: Program, model: ModelSource, settings: RunSettings, loop: TrainingLoop
    ) -> None:
        self._first, self._model, self._settings, self._loop = program, model, settings, loop
        self._pipeline = make_pipeline(program, model, settings)
        self._trials: list[Trial] = []

    @property
    def _left(self) -> int:
        return self._settings.steps - self._loop.step

    def _seconds(self, count: int) -> float:
        """The median time of the last ``count`` steps."""
        return statistics.median(record.seconds for record in self._loop.records[-count:])

    def _result(self, program: Program, attention: Mapping[str, Any] | None = None) -> TuneResult:
        self._pipeline.close()
        records = self._loop.records
        return TuneResult(
            program,
            tuple(record.loss for record in records),
            tuple(record.seconds for record in records),
            tuple(self._trials),
            attention,
        )


class _Tuning(_Steps):
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


class _Packing(_Steps):
    """Steps of a program each; the costs by which rank 0 packs follow their traces."""

    def __init__(
        self,
        program: Program,
        model: ModelSource,
        settings: RunSettings,
        repack: Repack,
        loop: TrainingLoop,
    ) -> None:
        super().__init__(program, model, replace(settings, varying_shapes=True), loop)
        self._repack = repack

    def run(self, every: int) -> TuneResult:
        while self._left:
            self._steps(min(every, self._left))
        with self._pipeline.together():
            mine = self._repack.learnt() if self._pipeline.rank == 0 else (self._first, None)
        return self._result(*mine)

    def _steps(self, count: int) -> None:
        """Runs ``count`` steps, and learns from their traces."""
        traces, planned = [], []
        for _ in range(count):
            plan = self._plan()
            self._loop.run(self._pipeline, 1, plan)
            traces.append(self._pipeline.gather_trace())
            planned.append(plan.program.schedule)
        with self._pipeline.together():
            if self._pipeline.rank == 0:
                self._repack.learn(traces)
        both = _makespan(planned), _makespan(traces)
        self._trials.append(Trial(self._loop.step, both[0], self._seconds(count), True, both[1]))

    def _plan(self) -> StepPlan:
        """The plan of the next step, which rank 0 makes, on all ranks."""
        with self._pipeline.together():
            mine = None
            if self._pipeline.rank == 0:
                step = self._loop.step
                with naming_lengths(self._model, step):
                    mine = self._repack.plan(lengths_at(self._model, step))
        return StepPlan(*self._pipeline.gather(mine)[0])


def _makespan(schedules: Sequence[Schedule]) -> float:
    """The median of timed schedules, in milliseconds."""
    return statistics.median(s.timing.makespan for s in schedules if s.timing is not None)
