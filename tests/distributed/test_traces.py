"""Traces of torch's own schedules, read back as profiles."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble

from pipeloom import profile_from
from pipeloom.ir import OpKind
from pipeloom.runtime import launch_ranks

RANKS, MICROBATCHES, STEPS, WIDTH = 2, 4, 3, 64


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def traced(folder: str) -> None:
    """One step to warm up, and some under torch's profiler."""
    rank, count = dist.get_rank(), 2 * RANKS
    stages = [
        PipelineStage(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)),
            *(s, count, torch.device("cpu")),
        )
        for s in range(rank, count, RANKS)
    ]
    schedule = ScheduleInterleavedZeroBubble(stages, MICROBATCHES, loss_fn=loss)  # type: ignore[arg-type]
    x = torch.ones(MICROBATCHES, WIDTH)
    arguments, target = [x] if rank == 0 else [], x if rank == RANKS - 1 else None
    schedule.step(*arguments, target=target)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            schedule.step(*arguments, target=target)
    profiled.export_chrome_trace(str(Path(folder) / f"{rank}.json.gz"))


def test_torchs_schedules_are_read_by_their_names(tmp_path: Path) -> None:
    launch_ranks(traced, RANKS, (str(tmp_path),), timeout=120, message_timeout=60)
    found = profile_from(tmp_path)
    assert (found.profile.num_stages, found.profile.ranks) == (2 * RANKS, RANKS)
    for s, (stage, times) in enumerate(zip(found.profile.stages, found.times, strict=True)):
        assert set(times) == {OpKind.F, OpKind.B, OpKind.W}
        assert {figure.samples for figure in times.values()} == {(STEPS - 1) * MICROBATCHES}
        assert stage.t_f > 0
        assert stage.t_w > 0
        assert (stage.t_b > 0) == (s > 0)  # torch's first stage leaves all to W
