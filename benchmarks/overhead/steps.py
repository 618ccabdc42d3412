"""Both runtimes and a bare loop in the same processes: a step of one, then of the next."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from pipeloom.compiler import compile_schedule
from pipeloom.compiler.exporters.torch_csv import write
from pipeloom.ir import Profile, Schedule, StageProfile, owners, simulate
from pipeloom.runtime import Pipeline, StagesAs, launch_ranks
from pipeloom.solver import build_family

from .bare import BareRank
from .priority import before_others, cores_awake
from .sleeping import ROWS, WIDTH, OurStage, TorchStage, loss, sleep_until
from .traced import TracedStage

RANKS, STEPS = 4, 20
CHUNKS = {"interleaved-1f1b:2": 2, "zb-v": 2}
LONG = 10.0  # ms an op
SOON = 2e-3  # seconds
LATENCY = 0.1  # ms, planned: what a small message takes here


@dataclass(frozen=True, slots=True)
class Case:
    """``family`` with ``microbatches``, on stages that sleep ``milliseconds`` in each of F, B,
    W."""

    family: str
    microbatches: int
    milliseconds: float

    def schedule(self, t_comm: float = LATENCY) -> Schedule:
        planned = self.milliseconds or 1.0
        stages = (StageProfile(planned, planned, planned),) * (RANKS * CHUNKS.get(self.family, 1))
        return build_family(self.family, Profile(stages, RANKS, t_comm=t_comm), self.microbatches)

    @property
    def ideal(self) -> float:
        """Milliseconds of a step whose messages and runtime cost nothing: the same order, timed."""
        if not self.milliseconds:
            return 0.0
        free = self.schedule(t_comm=0.0).problem
        return simulate(Schedule(free, self.schedule().order)).makespan

    def steps(self, most: int) -> int:
        """The number of steps, half as many of long ones: their spread is a part of the short
        ones'."""
        return max(1, most // 2) if self.milliseconds > LONG else most

    @property
    def ops_a_rank(self) -> float:
        return self.schedule().num_ops / RANKS


Step = Callable[[], object]
Span = tuple[float, float]


def measured(case: Case, stages_as: StagesAs) -> dict[str, Any]:
    """The median step of each runtime in milliseconds."""
    steps = case.steps(STEPS)
    with cores_awake() as awake:
        found = launch_ranks(_on_a_rank, RANKS, (case, steps, stages_as), timeout=3600)
    row = {f"{name}_ms": median_step([rank[name] for rank in found.values()]) for name in found[0]}
    return {
        "family": case.family,
        "microbatches": case.microbatches,
        "stage_ms": case.milliseconds,
        "ops_a_rank": case.ops_a_rank,
        "steps": steps,
        "cores_awake": awake,
        "ideal_ms": case.ideal,
        **row,
    }


def in_a_loop(milliseconds: float) -> dict[str, Any]:
    """F, B and W of a stage in a loop of plain torch, the median of the ranks."""
    with cores_awake():
        found = launch_ranks(_loop, RANKS, (milliseconds, 10 * STEPS))
    return {
        "stage_ms": milliseconds,
        "ideal_ms": 3 * milliseconds,
        "loop_ms": statistics.median(found.values()),
    }


def _on_a_rank(case: Case, steps: int, stages_as: StagesAs) -> dict[str, list[Span]]:
    """When each step began and ended, by runtime; two more go before."""
    torch.set_num_threads(1)
    before_others()
    x = torch.zeros(case.microbatches * ROWS, WIDTH)
    runtimes: dict[str, Step] = {
        "ours": _ours(case, x, stages_as),
        "torch": _torch(case, x),
        "bare": BareRank(compile_schedule(case.schedule()), case.milliseconds / 1e3).step,
    }
    return in_turn(runtimes, steps)


def _loop(milliseconds: float, rounds: int) -> float:
    """On one rank, without messages or a runtime: F, B and W of a stage in a loop of plain torch.

    Milliseconds, the median of ``rounds``: what any runtime costs here whose B is autograd's.
    """
    torch.set_num_threads(1)
    before_others()
    stage = TorchStage(milliseconds / 1e3)
    weigh = stage.dw_builder()
    x, dy = torch.zeros(ROWS, WIDTH), torch.ones(ROWS, WIDTH)
    taken = []
    for _ in range(rounds + 2):
        begin = time.perf_counter()
        leaf = x.detach().requires_grad_()
        torch.autograd.backward(stage(leaf), dy)
        leaf.grad = None
        weigh()
        taken.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(taken[2:])


def median_step(ranks: list[list[Span]]) -> float:
    """The median step of all ranks, from the first one's start to the last one's end, in
    milliseconds."""
    steps = zip(*ranks, strict=True)
    taken: list[float] = [
        max(end for _, end in step) - min(begin for begin, _ in step) for step in steps
    ]
    return 1e3 * statistics.median(taken)


def in_turn(runtimes: Mapping[str, Step], steps: int) -> dict[str, list[Span]]:
    """When each step of each runtime began and ended on this rank: a step of one, then of the next.

    Two more steps of each go before.
    """
    spans: dict[str, list[Span]] = {name: [] for name in runtimes}
    for _ in range(steps + 2):
        for name, run in runtimes.items():
            _start_together()
            begin = time.perf_counter()
            run()
            spans[name].append((begin, time.perf_counter()))
    return {name: row[2:] for name, row in spans.items()}


def _start_together() -> None:
    """Returns on all ranks at one time: a barrier alone lets them go one after the other."""
    dist.barrier()
    at = torch.tensor(time.perf_counter() + SOON, dtype=torch.float64)
    dist.broadcast(at, 0)
    sleep_until(at.item())


def _ours(case: Case, x: torch.Tensor, stages_as: StagesAs) -> Step:
    seconds = case.milliseconds / 1e3
    schedule = case.schedule()
    stages = [_stage(seconds, stages_as, first=s == 0) for s in range(schedule.problem.stages)]
    # torch counts no memory either
    pipeline = Pipeline(
        compile_schedule(schedule), stages, loss=loss, memory=False, stages_as=stages_as
    )
    return lambda: pipeline.step(x, target=x, return_outputs=False)


def _stage(seconds: float, stages_as: StagesAs, *, first: bool) -> Callable[[], torch.nn.Module]:
    if stages_as == "eager":
        return partial(OurStage, seconds)
    return partial(TracedStage, seconds, first=first)


def _torch(case: Case, x: torch.Tensor) -> Step:
    schedule = case.schedule()
    modules = {s: TorchStage(case.milliseconds / 1e3) for s in stages_here(schedule)}
    stages = [
        PipelineStage(
            module, s, schedule.problem.stages, torch.device("cpu"), dw_builder=module.dw_builder
        )
        for s, module in modules.items()
    ]
    return torch_step(schedule, stages, loss, x)


def stages_here(schedule: Schedule) -> list[int]:
    """The stages that this rank runs."""
    rank = dist.get_rank()
    return [s for s, owner in enumerate(owners(schedule)) if owner == rank]


def torch_step(
    schedule: Schedule,
    stages: list[PipelineStage],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
) -> Step:
    """A step of torch's runtime on this rank's ``stages`` by ``schedule``, with ``x`` as the batch
    and the target."""
    make: Any = _PipelineScheduleRuntime
    runtime = make(stages, schedule.problem.microbatches, loss_fn=loss)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schedule.csv")
        path.write_text(write(schedule), encoding="utf-8")
        runtime._load_csv(str(path), format="compute_only")
    arguments = [x] if any(stage.is_first for stage in stages) else []
    return lambda: runtime.step(*arguments, target=x, return_outputs=False)
