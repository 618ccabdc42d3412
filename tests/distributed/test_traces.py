"""Traces of real runs, pipeloom's and torch's, read back as profiles."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleavedZeroBubble

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.planner.measured.profile import profile_from
from pipeloom.runtime.launch.processes import launch
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.solver.families import build_family

RANKS, MICROBATCHES, STEPS, WIDTH = 2, 4, 3, 64
SLOW = 30.0  # milliseconds more that torch's first stage takes for a forward
PLANNED = (StageProfile(27.0, 18.0, 36.0), StageProfile(18.0, 45.0, 27.0))


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Schedule]:
    """A folder with a folder of traces for each run, and the measured schedule of our last step."""
    folder = tmp_path_factory.mktemp("traces")
    found = launch(run, RANKS, (str(folder),), timeout=120, message_timeout=60)
    measured: Schedule = found[0]
    return folder, measured


def run(folder: str) -> Schedule:
    measured = _ours(Path(folder) / "ours")
    for name, chunks in (("zb", 2), ("gpipe", 1)):
        _torchs(Path(folder) / name, chunks)
    return measured


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


class Slow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(SLOW / 1e3)
        return x


def stage(between: nn.Module | None = None) -> nn.Module:
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(first, between or nn.GELU(), last)


def _ours(folder: Path) -> Schedule:
    """Paced, so that ops take what the profile says, whatever else this machine does."""
    profile = Profile(PLANNED, ranks=RANKS, t_comm=0.0)
    plan = build_family("zb-h1", profile, MICROBATCHES, objective=Objective.MAKESPAN)
    pipeline = Pipeline(
        compile_schedule(plan), {dist.get_rank(): stage()}, loss=loss, pace=True, memory=False
    )

    def step() -> None:
        pipeline.barrier()
        pipeline.step(torch.ones(MICROBATCHES, WIDTH), target=torch.ones(MICROBATCHES, WIDTH))

    _traced(step, folder)
    measured = pipeline.gather_trace()
    pipeline.close()
    return measured


def _torchs(folder: Path, chunks: int) -> None:
    rank, count = dist.get_rank(), RANKS * chunks
    stages = [
        PipelineStage(stage(None if s else Slow()), s, count, torch.device("cpu"))
        for s in range(rank, count, RANKS)
    ]
    schedule = (
        ScheduleGPipe(stages[0], MICROBATCHES, loss_fn=loss)
        if chunks == 1
        else ScheduleInterleavedZeroBubble(stages, MICROBATCHES, loss_fn=loss)  # type: ignore[arg-type]
    )
    x = torch.ones(MICROBATCHES, WIDTH)

    def step() -> None:
        schedule.step(*([x] if rank == 0 else []), target=x if rank == RANKS - 1 else None)

    _traced(step, folder)


def _traced(step: Callable[[], None], folder: Path) -> None:
    """One step to warm up, and some under torch's profiler."""
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            step()
    folder.mkdir(exist_ok=True)
    profiled.export_chrome_trace(str(folder / f"{dist.get_rank()}.json.gz"))


def test_a_runs_trace_gives_a_profile_by_which_its_schedule_takes_as_long(
    traces: tuple[Path, Schedule],
) -> None:
    folder, measured = traces
    found = profile_from(folder / "ours", t_comm=0.0)
    for stage, planned in zip(found.profile.stages, PLANNED, strict=True):
        assert (stage.t_f, stage.t_b, stage.t_w) == pytest.approx(
            (planned.t_f, planned.t_b, planned.t_w), rel=0.25
        )
    assert {figure.samples for figure in found.times[0].values()} == {(STEPS - 1) * MICROBATCHES}
    problem = replace(measured.problem, profile=found.profile)
    simulated = simulate(replace(measured, problem=problem, timing=None))
    assert simulated.makespan == pytest.approx(measured.known_timing.makespan, rel=0.15)


def test_torchs_schedules_are_read_by_their_names(traces: tuple[Path, Schedule]) -> None:
    folder, _ = traces
    found = profile_from(folder / "zb")
    assert (found.profile.num_stages, found.profile.ranks) == (2 * RANKS, RANKS)
    for s, (stage, times) in enumerate(zip(found.profile.stages, found.times, strict=True)):
        assert set(times) == {OpKind.F, OpKind.B, OpKind.W}
        assert stage.t_f > 0
        assert stage.t_w > 0
        assert (stage.t_b > 0) == (s > 0)  # torch's first stage leaves all to W


def test_waiting_is_no_part_of_an_op(traces: tuple[Path, Schedule]) -> None:
    """GPipe's ranges wait for their messages: each F of the last stage for that of the first."""
    folder, _ = traces
    found = profile_from(folder / "gpipe", warmup=0)
    assert found.profile.num_stages == RANKS
    for times in found.times:
        assert set(times) == {OpKind.F, OpKind.BW}
        assert times[OpKind.F].samples == STEPS * MICROBATCHES
    first, last = found.profile.stages
    assert first.t_f > SLOW
    assert 0 < last.t_f < SLOW / 3
