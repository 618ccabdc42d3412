"""Training on sequences that are packed and planned anew for each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Protocol, runtime_checkable

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule

from ..pipeline.model_source import ModelSource, lengths_at, naming_lengths
from .loop import StepPlan, TrainingLoop
from .settings import RunSettings
from .tuned_steps import Trial, TunedSteps, TuneResult


@runtime_checkable
class Repack(Protocol):
    """A planner of packed steps: ``plan`` makes the program of what the source's ``lengths`` gives,
    and the sequences of each of its microbatches; ``learn`` takes the traces of the last of the
    plans since it was called last."""

    def plan(self, batch: Any) -> tuple[Program, Sequence[Sequence[int]]]: ...

    def learn(self, traces: Sequence[Schedule]) -> None: ...

    def learnt(self) -> tuple[Program, Mapping[str, Any] | None]:
        """The first program by the costs that were measured, and the shares that go with them."""
        ...


class PackedSteps(TunedSteps):
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
        self._planned, self._traced = list[float](), list[float]()

    def run(self, every: int) -> TuneResult:
        while self._left:
            self._steps(min(every, self._left))
        with self._pipeline.together():
            mine = self._repack.learnt() if self._pipeline.rank == 0 else (self._first, None)
        program, attention = mine
        times = {"planned": tuple(self._planned), "traced": tuple(self._traced)}
        return self._result(program, attention=attention, **times)

    def _steps(self, count: int) -> None:
        """Runs ``count`` steps, and learns from their traces; not from the run's first step where
        there are more, as that one allocates, connects and compiles."""
        cold = int(self._loop.step == 0 and count > 1)
        traces = []
        for _ in range(count):
            program, rows = self._plan()
            self._loop.run(self._pipeline, 1, StepPlan(program, rows))
            traces.append(self._pipeline.gather_trace())
            self._planned.append(_makespan(program.schedule))
            self._traced.append(_makespan(traces[-1]))
        with self._pipeline.together():
            if self._pipeline.rank == 0:
                self._repack.learn(traces[cold:])
        settled = count - cold
        planned, traced = (median(each[-settled:]) for each in (self._planned, self._traced))
        seconds = self._seconds(settled)
        self._trials.append(Trial(self._loop.step, planned, seconds, kept=True, traced=traced))

    def _plan(self) -> tuple[Program, Sequence[Sequence[int]]]:
        """The next step's program and sequences, which rank 0 plans, on all ranks."""
        with self._pipeline.together():
            mine = None
            if self._pipeline.rank == 0:
                step = self._loop.step
                with naming_lengths(self._model, step):
                    mine = self._repack.plan(lengths_at(self._model, step))
        program, rows = self._pipeline.gather(mine)[0]
        return program, rows


def _makespan(schedule: Schedule) -> float:
    """In milliseconds."""
    return (schedule.timing or simulate(schedule)).makespan
