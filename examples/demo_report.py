"""The report at the end of the demo: a table of the runs, which compares plan and measurement."""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.schedule import Schedule, Timing
from pipeloom.ir.units import amount, duration
from pipeloom.report.summaries import percent
from pipeloom.report.text_table import table

# float32 sums in another order differ, and training amplifies the difference
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The result of ``pipeloom.run`` as a dictionary, and the median step as a schedule with
    measured times."""

    answer: dict[str, Any]
    measured: Schedule

    @property
    def losses(self) -> list[float]:
        return list(map(float, self.answer["losses"]))

    @property
    def step(self) -> float:
        """The duration of the median step in milliseconds."""
        return float(statistics.median(self.answer["seconds"])) * 1e3


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """A planned schedule, and the run that used it.

    ``paced``: a second run, in which each op sleeps until its planned time is over; None if there
    is a core for each rank.
    """

    title: str
    planned: Schedule
    run: Run
    paced: Run | None


def curve(losses: Sequence[float]) -> str:
    """About eight of the losses as text, including the first and the last one."""
    every = max(1, len(losses) // 7)
    shown = [*losses[:-1:every], losses[-1]]
    return " ".join(f"{loss:.3f}" for loss in shown)


def timing(schedule: Schedule) -> Timing:
    assert schedule.timing is not None, "files of schedules hold their times"
    return schedule.timing


def largest_difference(alone: Sequence[float], curves: Iterable[Sequence[float]]) -> float:
    """The largest difference in the loss of any step between training in one process and any of
    ``curves``.

    ``alone``: the losses of the steps in one process. NaN counts as larger than any number.
    """
    differences = [abs(a - b) for curve in curves for a, b in zip(alone, curve, strict=True)]
    return max(differences, key=lambda value: math.inf if math.isnan(value) else value)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def report(results: Sequence[Result]) -> str:
    """The table of the results, and an explanation of its columns, as text."""
    paced = any(result.paced for result in results)
    header = ["schedule", "planned bubble", "measured", "planned step", "measured"]
    header += ["unpaced"] if paced else []
    header += ["planned memory", "measured", "loss"]
    return "\n".join([table(header, list(map(_row, results))), "", *_legend(paced)])


def _row(result: Result) -> list[str]:
    planned, run, timed = timing(result.planned), result.run, result.paced or result.run
    return [
        result.title,
        percent(planned.bubble_rate(Objective.MAKESPAN)),
        percent(timing(timed.measured).bubble_rate(Objective.MAKESPAN)),
        duration(planned.makespan),
        duration(timed.step),
        *([duration(run.step)] if result.paced else []),
        f"{amount(max(planned.peak_memory))}B",
        f"{amount(max(run.answer['peak_memory']))}B",
        f"{run.losses[0]:.3f} to {run.losses[-1]:.3f}",
    ]


def _legend(paced: bool) -> list[str]:
    lines = [
        "Bubble: 1 - work / (ranks x makespan). Step: the median; measured, with the optimizer's.",
        "Memory: activations on the rank that holds most; measured, with messages that came early.",
    ]
    if paced:
        lines += [
            f"Measured bubble and step are the paced runs'; unpaced, all share {cores()} cores."
        ]
    return lines
