"""Steps of ZB-H1 on Gloo ranks, alternating between kinds of stages of our runtime and of
torch's."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch.distributed.pipelining import PipelineStage
from torch.nn.functional import mse_loss

from pipeloom import Pipeline, Profile, Schedule, StageProfile, build_family, compile_schedule
from pipeloom.runtime import StagesAs, launch_ranks

from ..clocks import Span, in_turn, medians
from ..overhead.steps import Step, stages_here, torch_step
from . import NARROW, SPLIT, WHOLE
from .stages import LENGTH, ROWS, blocks

LATENCY = 0.1  # planned, in units of T_F, T_B and T_W
OURS: tuple[StagesAs, ...] = ("eager", "aten", "inductor")


def measured(width: int, ranks: int, least: int) -> dict[str, Any]:
    """The median step time, and the median CPU time summed over all ranks, in milliseconds, by
    runtime and kind of stages.

    Each rank has one stage of two transformer blocks of ``width``. ``least``: the number of steps
    of wide stages; narrow ones run four times as many, because their times vary more.
    """
    steps = least if width > NARROW else 4 * least
    found = launch_ranks(_on_a_rank, ranks, (width, steps), timeout=3600)
    spans = {way: medians([rank[way] for rank in found.values()]) for way in found[0]}
    times, cpu = ({way: each[k] for way, each in spans.items()} for k in (0, 1))
    return {"width": width, "ranks": ranks, "steps": steps, "ms": times, "cpu_ms": cpu}


def _on_a_rank(width: int, steps: int) -> dict[str, list[Span]]:
    torch.set_num_threads(1)
    functorch.donated_buffer = False  # otherwise a compiled backward cannot run in two parts
    planned, whole = _schedule("zb-h1"), _schedule("1f1b")
    x = torch.randn(planned.problem.microbatches * ROWS, LENGTH, width)
    runs: dict[str, Step] = {way: _ours(planned, _stages(planned, width), way, x) for way in OURS}
    runs[SPLIT] = torch_step(planned, _torchs(planned, width), mse_loss, x)
    runs[WHOLE] = torch_step(whole, _torchs(whole, width), mse_loss, x)
    return in_turn(runs, steps)


def _schedule(family: str) -> Schedule:
    """A schedule of ``family`` with two microbatches per rank."""
    ranks = torch.distributed.get_world_size()
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * ranks, ranks, t_comm=LATENCY)
    return build_family(family, profile, 2 * ranks)


def _stages(schedule: Schedule, width: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [blocks(width) for _ in range(schedule.problem.stages)]


def _ours(schedule: Schedule, stages: list[nn.Module], way: StagesAs, x: Tensor) -> Step:
    program = compile_schedule(schedule)
    pipeline = Pipeline(program, stages, loss=mse_loss, memory=False, stages_as=way)
    return lambda: pipeline.step(x, target=x, return_outputs=False)


def _torchs(schedule: Schedule, width: int) -> list[PipelineStage]:
    """The stages of this rank, compiled with torch.compile."""
    modules, cpu = _stages(schedule, width), torch.device("cpu")
    compiled = {s: torch.compile(modules[s], dynamic=False) for s in stages_here(schedule)}
    return [
        PipelineStage(cast(nn.Module, module), s, len(modules), cpu)
        for s, module in compiled.items()
    ]
