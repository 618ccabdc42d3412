"""Steps of both runtimes and of a bare loop in the same processes, alternating between them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from pipeloom import Pipeline, build_family, compile_schedule, export
from pipeloom.ir import Profile, Schedule, StageProfile, owners, simulate
from pipeloom.runtime import StagesAs, launch_ranks

from ..clocks import Span, before_others, cores_awake, in_turn, medians
from .bare import BareRank
from .sleeping import ROWS, WIDTH, OurStage, TorchStage, loss
from .traced import TracedStage

RANKS, STEPS = 4, 20
CHUNKS = {"interleaved-1f1b:2": 2, "zb-v": 2}
LONG = 10.0  # ms per op
LATENCY = 0.1  # planned time of a small message in ms
Step = Callable[[], object]
Module = Callable[[], torch.nn.Module]


@dataclass(frozen=True, slots=True)
class Asked:
    """A case: a schedule of ``family`` with ``microbatches`` microbatches, in which each F, B and W
    sleeps for ``milliseconds``."""

    family: str
    microbatches: int
    milliseconds: float

    def schedule(self, t_comm: float = LATENCY) -> Schedule:
        planned = self.milliseconds or 1.0
        stages = (StageProfile(planned, planned, planned),) * (RANKS * CHUNKS.get(self.family, 1))
        return build_family(self.family, Profile(stages, RANKS, t_comm=t_comm), self.microbatches)

    @property
    def ideal(self) -> float:
        """The makespan in milliseconds of the same order of ops if messages and the runtime cost no
        time."""
        if not self.milliseconds:
            return 0.0
        free = self.schedule(t_comm=0.0).problem
        return simulate(Schedule(free, self.schedule().order)).makespan

    def batch(self) -> torch.Tensor:
        return torch.zeros(self.microbatches * ROWS, WIDTH)


def measured(case: Asked, stages_as: StagesAs) -> dict[str, Any]:
    """The median step time of each runtime in milliseconds, and the settings of the case.

    Long steps are repeated only half as often, because their times vary less.
    """
    steps = STEPS // 2 if case.milliseconds > LONG else STEPS
    with cores_awake() as awake:
        found = launch_ranks(_on_a_rank, RANKS, (case, steps, stages_as), timeout=3600)
    row = {f"{name}_ms": medians([rank[name] for rank in found.values()])[0] for name in found[0]}
    return {
        "family": case.family,
        "microbatches": case.microbatches,
        "stage_ms": case.milliseconds,
        "ops_a_rank": case.schedule().num_ops / RANKS,
        "steps": steps,
        "cores_awake": awake,
        "ideal_ms": case.ideal,
        **row,
    }


def _on_a_rank(case: Asked, steps: int, stages_as: StagesAs) -> dict[str, list[Span]]:
    """The spans of the steps on this rank, by runtime."""
    before_others()
    runtimes: dict[str, Step] = {
        "ours": _ours(case, stages_as),
        "torch": _torch(case),
        "bare": BareRank(compile_schedule(case.schedule()), case.milliseconds / 1e3).step,
    }
    return in_turn(runtimes, steps)


def _ours(case: Asked, stages_as: StagesAs) -> Step:
    seconds, program, x = case.milliseconds / 1e3, compile_schedule(case.schedule()), case.batch()
    stages: list[Module] = [
        partial(OurStage, seconds)
        if stages_as == "eager"
        else partial(TracedStage, seconds, first=s == 0)
        for s in range(program.schedule.problem.stages)
    ]
    # memory=False: torch's runtime does not count memory either
    pipeline = Pipeline(program, stages, loss=loss, memory=False, stages_as=stages_as)
    return lambda: pipeline.step(x, target=x, return_outputs=False)


def _torch(case: Asked) -> Step:
    schedule = case.schedule()
    modules = {s: TorchStage(case.milliseconds / 1e3) for s in stages_here(schedule)}
    count, cpu = schedule.problem.stages, torch.device("cpu")
    stages = [
        PipelineStage(module, s, count, cpu, dw_builder=module.dw_builder)
        for s, module in modules.items()
    ]
    return torch_step(schedule, stages, loss, case.batch())


def stages_here(schedule: Schedule) -> list[int]:
    """The indices of the stages on this rank."""
    return [s for s, owner in enumerate(owners(schedule)) if owner == dist.get_rank()]


def torch_step(
    schedule: Schedule,
    stages: list[PipelineStage],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
) -> Step:
    """A function that runs a step of torch's runtime with this rank's ``stages``.

    ``x`` is both the batch and the target.
    """
    make: Any = _PipelineScheduleRuntime
    runtime = make(stages, schedule.problem.microbatches, loss_fn=loss)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schedule.csv")
        path.write_text(export(schedule, "torch-csv").text, encoding="utf-8")
        runtime._load_csv(str(path), format="compute_only")
    arguments = [x] if any(stage.is_first for stage in stages) else []
    return lambda: runtime.step(*arguments, target=x, return_outputs=False)
