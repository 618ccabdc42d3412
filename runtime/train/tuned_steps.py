"""Parts that tuned runs have in common: one rank's side of them, and the result."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeloom.ir.model.program import Program

from ..pipeline.model_source import ModelSource
from .loop import TrainingLoop, finite
from .settings import RunSettings
from .train import make_pipeline


@dataclass(frozen=True, slots=True)
class Trial:
    """Steps under one program, or of a program each, the last of them ``steps``.

    ``planned``: its makespan in milliseconds, None where the program does not say; ``seconds``: the
    median that was measured; ``kept``: whether that is the shortest so far. Of steps of a program
    each ``planned`` is the median, and ``traced`` that of the measured makespans, without the
    change of programs, both without the run's first step where there are more; ``kept`` is true.
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
    ``attention`` what goes with its profile into a lengths file; ``planned`` and ``traced`` are the
    milliseconds of each step's plan and of its measured trace.
    """

    program: Program
    losses: tuple[float, ...]
    seconds: tuple[float, ...]
    trials: tuple[Trial, ...]
    attention: Mapping[str, Any] | None = None
    planned: tuple[float, ...] = ()
    traced: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The document that ``tune --json`` prints, but for where the schedule was written."""
        return {
            "steps": len(self.losses),
            "losses": [finite(loss) for loss in self.losses],
            "seconds": list(self.seconds),
            "trials": [asdict(trial) for trial in self.trials],
        } | ({} if self.attention is None else self._of_packed(self.attention))

    def _of_packed(self, attention: Mapping[str, Any]) -> dict[str, Any]:
        steps = {"planned": list(self.planned), "traced": list(self.traced)}
        return steps | {"attention": dict(attention)}


class TunedSteps:
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

    def _result(self, program: Program, **packed: Any) -> TuneResult:
        self._pipeline.close()
        records = self._loop.records
        return TuneResult(
            program,
            tuple(record.loss for record in records),
            tuple(record.seconds for record in records),
            tuple(self._trials),
            **packed,
        )
