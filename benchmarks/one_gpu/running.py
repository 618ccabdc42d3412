"""Steps of a program on ranks that share a device, and what they took."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule
from pipeloom.runtime.launch.processes import launch
from pipeloom.runtime.train.loop import mean_loss, train_step
from pipeloom.runtime.train.settings import RunSettings
from pipeloom.runtime.train.train import make_pipeline

from .sizes import Source

TIMEOUT = 150.0  # seconds of one run


@dataclass(frozen=True, slots=True)
class Steps:
    """``traces`` of the measured steps; ``seconds`` of each, the optimizers' included; ``losses``
    of all.

    ``peaks``: of each rank, bytes of activations by the ledger; ``allocated``: bytes that torch's
    allocators of all ranks had before a step and at most during one, None on a CPU.
    """

    traces: Sequence[Schedule]
    seconds: Sequence[float]
    losses: Sequence[float]
    peaks: Sequence[int]
    allocated: tuple[int, int] | None

    @property
    def median(self) -> Schedule:
        """The trace of median makespan."""
        return sorted(self.traces, key=makespan)[len(self.traces) // 2]

    @property
    def milliseconds(self) -> float:
        return statistics.median(map(makespan, self.traces))


def makespan(trace: Schedule) -> float:
    return trace.known_timing.makespan


def run_steps(
    program: Program,
    source: Source,
    warmup: int,
    steps: int,
    device: str,
) -> Steps:
    """``steps`` measured ones after ``warmup``, in bfloat16. Raises LaunchError where a rank
    fails."""
    settings = RunSettings(steps=warmup + steps, dtype="bfloat16", device=device)
    ranks = program.schedule.problem.ranks
    arguments = program, source, settings, warmup
    found: Steps = launch(_steps, ranks, arguments, device=device, timeout=TIMEOUT)[0]
    return found


def _steps(program: Program, source: Source, settings: RunSettings, warmup: int) -> Steps:
    """The steps of one rank."""
    pipeline = make_pipeline(program, source, settings)
    runs = [train_step(pipeline, source, step, settings) for step in range(warmup)]
    pipeline.barrier()
    before = _allocated(pipeline.device)
    if before is not None:
        torch.cuda.reset_peak_memory_stats(pipeline.device)
    runs += [train_step(pipeline, source, step, settings) for step in range(warmup, settings.steps)]
    memory = pipeline.gather((before, pipeline.device_peak))
    traces = [pipeline.gather_trace(run.marks) for run in runs[warmup:]]
    rows = pipeline.gather([(run.losses, run.seconds, run.peak) for run in runs])
    pipeline.close()
    steps = range(settings.steps)
    return Steps(
        traces,
        [max(row[step][1] for row in rows) for step in steps][warmup:],
        [mean_loss([row[step][0] for row in rows]) for step in steps],
        [max(peak for _, _, peak in row) for row in rows],
        None if before is None else (sum(b for b, _ in memory), sum(p for _, p in memory)),
    )


def _allocated(device: torch.device) -> int | None:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None
