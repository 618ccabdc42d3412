"""Steps of a schedule where op times vary, and the ops whose lateness they feel most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.spread import StepSamples, sample_steps
from pipeloom.ir.model.ops import OpKind, fields_of
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted, duration
from pipeloom.report.summaries import percent
from pipeloom.report.text_table import table

from .variation import Variation, drawn_samples, weighted

SHOWN = 5
"""Kinds of ops that the words name."""


@dataclass(frozen=True, slots=True)
class LateOps:
    """The ops of one kind of a stage on a rank: ``felt``: the share of their lateness that the step
    feels, in the mean over them and samples; ``one_percent``: ms that the step grows by where all
    of them take 1 % longer."""

    rank: int
    stage: int
    kind: str
    felt: float
    one_percent: float

    def __str__(self) -> str:
        return f"rank {self.rank} {self.kind} of stage {self.stage}: {percent(self.felt)}"


@dataclass(frozen=True, slots=True)
class LateStep:
    """The cost of a schedule by its objective, in ms, over ``samples``; ``planned`` is that of the
    profile's times. ``ops``: those that cost most first."""

    name: str
    objective: str
    planned: float
    mean: float
    median: float
    p95: float
    samples: int
    ops: tuple[LateOps, ...]
    variation: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def cells(self) -> list[str]:
        costs = (self.planned, self.mean, self.median, self.p95)
        return [self.name, *map(duration, costs), self._beyond(), str(self.ops[0])]

    def _beyond(self) -> str:
        return f"{self.mean / self.planned - 1:+.2%}" if self.planned > 0 else "-"

    def __str__(self) -> str:
        header = ["rank", "stage", "op", "felt", "step where they take 1 % longer", ""]
        rows = [
            [f"{one.rank}", f"{one.stage}", one.kind, percent(one.felt), f"+{one.one_percent:.3g}"]
            for one in self.ops[:SHOWN]
        ]
        shown = table(header, [[*row, ""] for row in rows])
        words = "felt: the share of an op's lateness that the step feels"
        return f"{late_table([self])}\n\n{shown}\n{words}"


def late_table(rows: Sequence[LateStep]) -> str:
    """One line a schedule."""
    header = ["scheme", "planned", "mean", "median", "95th percentile", "mean beyond", "felt most"]
    first = rows[0]
    head = f"{first.objective} where {first.variation} ({counted(first.samples, 'sample')})"
    return f"{head}\n{table(header, [row.cells() for row in rows])}"


def late_step(
    schedule: Schedule, variation: Variation, name: str = "schedule", *, seed: int
) -> LateStep:
    """The cost of ``schedule`` under ``variation``. Raises InputError where that does not fit."""
    problem = schedule.problem
    count = drawn_samples(schedule.num_ops) if variation.spreads else 1
    found = sampled(schedule, variation, seed=seed, samples=count)
    return LateStep(
        name,
        problem.objective.value,
        (schedule.timing or simulate(schedule)).cost(problem.objective),
        found.mean,
        found.quantile(0.5),
        found.quantile(0.95),
        count,
        tuple(sorted(_late_ops(schedule, found), key=lambda one: -one.one_percent)),
        str(variation),
    )


def sampled(schedule: Schedule, variation: Variation, *, seed: int, samples: int) -> StepSamples:
    """The samples of the schedule's cost under ``variation``."""
    slow = variation.of_ranks(schedule.problem.ranks) if variation.slow else None
    ratios = variation.ratios(schedule.problem)
    return sample_steps(schedule, ratios, samples=samples, seed=seed, slow=slow)


def _late_ops(schedule: Schedule, found: StepSamples) -> list[LateOps]:
    timing = schedule.timing or simulate(schedule)
    times = np.concatenate(timing.took)
    rank = np.repeat(np.arange(len(schedule.order)), [len(row) for row in schedule.order])
    kind, stage, _ = fields_of(np.concatenate(schedule.order).astype(np.int64))
    keys = np.stack([rank, stage, kind], axis=1)
    each, which = np.unique(keys, axis=0, return_inverse=True)
    return [
        LateOps(
            r, s, OpKind(k).name, float(found.felt[which == i].mean()),
            weighted(found.felt[which == i], times[which == i]),
        )
        for i, (r, s, k) in enumerate(each.tolist())
    ]  # fmt: skip
