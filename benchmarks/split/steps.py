"""Whole ZB-H1 steps on Gloo ranks: our runtime's stages in each way, and torch's, in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
from torch.nn import functional

from pipeloom import Pipeline, Profile, Schedule, StageProfile, build_family, compile_schedule
from pipeloom.runtime import StagesAs

from ..overhead.steps import Span, Step, in_turn, median_step, stages_here, torch_step
from . import NARROW, SPLIT, WHOLE
from .stages import LENGTH, ROWS, blocks

LATENCY = 0.1  # planned, where an F, a B and a W take 1
OURS: tuple[StagesAs, ...] = ("eager", "aten", "inductor")


@dataclass(frozen=True, slots=True)
class Case:
    """Stages of two transformer blocks of ``width``, one a rank."""

    width: int
    ranks: int

    @property
    def microbatches(self) -> int:
        return 2 * self.ranks

    def schedule(self, family: str = "zb-h1") -> Schedule:
        stages = (StageProfile(1.0, 1.0, 1.0),) * self.ranks
        profile = Profile(stages, self.ranks, t_comm=LATENCY)
        return build_family(family, profile, self.microbatches)

    def stages(self) -> list[nn.Module]:
        torch.manual_seed(0)
        return [blocks(self.width)[0] for _ in range(self.ranks)]

    def steps(self, least: int) -> int:
        """The number of steps: more of short ones, whose times spread more."""
        return least if self.width > NARROW else 4 * least


Found = tuple[dict[str, list[Span]], dict[str, list[float]], str]


def measure_steps(case: Case, steps: int) -> Found:
    """On one rank: when each step of each way began and ended, the processor's seconds that it
    took, and what torch's own zero-bubble schedule says to compiled stages."""
    torch.set_num_threads(1)
    functorch.donated_buffer = False  # else a compiled backward does not run in two parts
    x = torch.randn(case.microbatches * ROWS, LENGTH, case.width)
    runs: dict[str, Step] = {way: _ours(case, way, x) for way in OURS}
    runs[SPLIT] = torch_step(case.schedule(), _torchs(case), _loss, x)
    runs[WHOLE] = torch_step(case.schedule("1f1b"), _torchs(case), _loss, x)
    taken: dict[str, list[float]] = {way: [] for way in runs}
    counted = {way: partial(_counted, run, taken[way]) for way, run in runs.items()}
    spans = in_turn(counted, case.steps(steps))
    return spans, {way: seconds[-len(spans[way]) :] for way, seconds in taken.items()}, _said(case)


def _counted(run: Step, taken: list[float]) -> None:
    begin = time.process_time()
    run()
    taken.append(time.process_time() - begin)


def _ours(case: Case, way: StagesAs, x: Tensor) -> Step:
    program = compile_schedule(case.schedule())
    pipeline = Pipeline(program, case.stages(), loss=_loss, memory=False, stages_as=way)
    return lambda: pipeline.step(x, target=x, return_outputs=False)


def _torchs(case: Case) -> list[PipelineStage]:
    """This rank's stages under torch.compile."""
    modules, cpu = case.stages(), torch.device("cpu")
    return [
        PipelineStage(cast(nn.Module, torch.compile(modules[s], dynamic=False)), s, case.ranks, cpu)
        for s in stages_here(case.schedule())
    ]


def _said(case: Case) -> str:
    try:
        ScheduleInterleavedZeroBubble(list(_torchs(case)), case.microbatches)
    except RuntimeError as error:
        return str(error)
    return ""


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output, target)


def summary(case: Case, found: Mapping[int, Found]) -> dict[str, Any]:
    """The row of a case: of each way the median step, and the processor's time of all ranks in one,
    in milliseconds."""
    spans, taken = [rank[0] for rank in found.values()], [rank[1] for rank in found.values()]
    times = {way: median_step([rank[way] for rank in spans]) for way in spans[0]}
    cpu = {way: 1e3 * sum(statistics.median(rank[way]) for rank in taken) for way in times}
    row = {"width": case.width, "ranks": case.ranks, "steps": len(taken[0]["eager"])}
    return {**row, "ms": times, "cpu_ms": cpu, "torch_says": found[0][2]}
