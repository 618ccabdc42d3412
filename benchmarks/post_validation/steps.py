"""Steps one after the other, with no barrier of the benchmark's own, on stages that sleep."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from benchmarks.runtime_overhead.priority import before_others
from benchmarks.runtime_overhead.sleeping import ROWS, WIDTH, OurStage, loss
from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.steady_state.steady_state import step_time
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.solver.families import build_family

from ..markdown import markdown

RANKS, MILLISECONDS, LATENCY = 4, 10.0, 0.1
ANY, NONE = float("inf"), 1e-9


@dataclass(frozen=True, slots=True)
class Case:
    family: str
    microbatches: int

    def schedule(self) -> Schedule:
        stages = (StageProfile(MILLISECONDS, MILLISECONDS, MILLISECONDS),) * RANKS
        return build_family(self.family, Profile(stages, RANKS, t_comm=LATENCY), self.microbatches)


@dataclass(frozen=True, slots=True)
class Way:
    """``clip``: the norm that is allowed; None: nobody asks for one."""

    name: str
    meaning: str
    clip: float | None
    ahead: bool


WAYS = (
    Way("none", "no norm", None, False),
    Way("ahead", "steps ahead, no step clips", ANY, True),
    Way("waiting", "all wait for the norm", ANY, False),
    Way("clipped", "steps ahead, every step clips", NONE, True),
)


def measure(cases: Sequence[Case], steps: int, rounds: int) -> list[dict[str, list[float]]]:
    """On one rank: seconds from each step's begin to the next one's, by way."""
    torch.set_num_threads(1)
    before_others()
    return [_measure(case, steps, rounds) for case in cases]


def _measure(case: Case, steps: int, rounds: int) -> dict[str, list[float]]:
    pipelines = {way.name: _pipeline(case, way) for way in WAYS}
    x = torch.zeros(case.microbatches * ROWS, WIDTH)
    found: dict[str, list[float]] = {name: [] for name in pipelines}
    for _ in range(rounds):
        for name, pipeline in pipelines.items():
            pipeline.barrier()
            begins = []
            for _ in range(steps + 2):
                begins.append(time.perf_counter())
                pipeline.step(x, target=x, return_outputs=False)
            pipeline.finish()
            gaps = [after - before for before, after in pairwise(begins)]
            found[name] += gaps[1:]
    for pipeline in pipelines.values():
        pipeline.close()
    return found


def _pipeline(case: Case, way: Way) -> Pipeline:
    schedule = case.schedule()
    return Pipeline(
        compile_schedule(schedule, post_validation=way.ahead),
        [lambda: OurStage(MILLISECONDS / 1e3)] * schedule.problem.stages,
        loss=loss,
        optimizer=partial(torch.optim.SGD, lr=0.0),
        clip_grad_norm=way.clip,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """``seconds``: the median step of all ranks and rounds, by way; ``planned``: a free-running
    one's."""

    case: Case
    planned: float
    seconds: dict[str, float]

    @classmethod
    def of(cls, case: Case, ranks: Sequence[dict[str, list[float]]]) -> Row:
        medians = {
            way.name: statistics.median(gap for rank in ranks for gap in rank[way.name])
            for way in WAYS
        }
        return cls(case, step_time(case.schedule()) / 1e3, medians)

    def as_json(self) -> dict[str, Any]:
        return {
            "family": self.case.family,
            "microbatches": self.case.microbatches,
            "planned_ms": self.planned * 1e3,
            "step_ms": {name: seconds * 1e3 for name, seconds in self.seconds.items()},
        }


def table(rows: Sequence[Row]) -> list[str]:
    """The step without a norm in milliseconds, the others as ratios to it."""
    names = [way.name for way in WAYS[1:]]
    lines = []
    for row in rows:
        ratios = (f"{row.seconds[name] / row.seconds['none']:.3f}" for name in names)
        base = [f"{seconds * 1e3:.1f} ms" for seconds in (row.planned, row.seconds["none"])]
        lines.append([row.case.family, str(row.case.microbatches), *base, *ratios])
    return markdown(["schedule", "M", "planned", "no norm", *names], lines)
