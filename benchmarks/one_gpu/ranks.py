"""Profiles, plans and runs of ranks that share a device, and a check of their gradients."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from examples.gpt import GPT
from pipeloom import Pipeline, build_family, compile_schedule, profile_from, simulate, solve
from pipeloom.ir import Objective, Problem, Profile, Program, Schedule, StageProfile
from pipeloom.report import attribute
from pipeloom.runtime import RunSettings, launch_ranks, measure_profile, run_program

T = TypeVar("T", bound=nn.Module)
STEPS, ROUNDS, PLAN, TIMEOUT = 8, 6, 8.0, 150.0
WITHIN = {"zb-1p": 1, "zb-2p": 2}  # memory limit in units of P x M_B
CHUNKS = {"zb-v": 2}


@dataclass(frozen=True)
class Source(GPT):
    """The GPT of the examples, created on its device ``home``, as drawing its weights on a CPU is
    slow."""

    home: str = "cpu"
    learning_rate: float = 1e-4

    def _unit(self, place: int, build: Callable[[], T]) -> T:
        with torch.device(self.home):
            return super()._unit(place, build)


def measured(
    ranks: int, microbatches: int, names: Sequence[str], device: str, *, tiny: bool
) -> dict[str, Any]:
    """Profile a GPT with all ranks computing at the same time, then plan and run each schedule of
    ``names``.

    With NVIDIA's Multi-Process Service (MPS), each rank gets an equal share of the GPU. The share
    is an environment variable, so each case runs in a new process.
    """
    os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(100 // ranks)
    source = Source(4, 32, 2, 16, home=device)
    if not tiny:  # without a GPU, the launch raises an error
        source, device = Source(16, 2048, 16, 1024, 4, home="cuda"), "cuda"
    kept: dict[str, Any] = {"repeats": ROUNDS, "warmup": 1, "dtype": torch.bfloat16}
    profiles = {
        chunks: measure_profile(source, stages=ranks * chunks, ranks=ranks, device=device, **kept)
        for chunks in {CHUNKS.get(name, 1) for name in names}
    }
    shares = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    found: dict[str, Any] = {"tiny": tiny, "device": device, "shares": shares, "schedules": {}}
    found["profiles"] = {str(chunks): each.record() for chunks, each in profiles.items()}
    for name in names:
        schedule = planned(name, profiles[CHUNKS.get(name, 1)].profile, microbatches)
        found["schedules"][name], own = run(schedule, source, device)
        if name == "1f1b":
            tuned, _ = run(planned("zb-2p", own.problem.profile, microbatches), source, device)
            plain, plan = found["schedules"][name], simulate(own).makespan
            found["tuned_gain"] = 1 - tuned["measured_ms"] / plain["measured_ms"]
            found["planned_gain"] = 1 - tuned["planned_ms"] / plan
    return found


def planned(name: str, profile: Profile, microbatches: int) -> Schedule:
    """The schedule called ``name``: of a family, or for zb-1p and zb-2p an optimized one within 1
    or 2 times P x M_B of memory."""
    if name not in WITHIN:
        return build_family(name, profile, microbatches, objective=Objective.MAKESPAN)
    limit = WITHIN[name] * profile.ranks * max(stage.m_b for stage in profile.stages)
    problem = Problem.linear(profile, microbatches, limit, Objective.MAKESPAN)
    return solve(problem, time_limit=PLAN)


def run(schedule: Schedule, source: GPT, device: str) -> tuple[dict[str, Any], Schedule]:
    """Run a schedule; returns figures of the step with the median time, and a schedule with
    measured op times.

    The second result has the same order of ops and the measured op times as profile. Its simulation
    shows which part of the difference between plan and measurement is not due to slow ops. ``host``
    in the figures: the largest fraction of the step in which a rank idles although all its inputs
    have arrived.
    """
    settings = RunSettings(steps=STEPS, dtype="bfloat16", device=device, timeout=TIMEOUT)
    with TemporaryDirectory() as folder:
        path = str(Path(folder, "trace.json"))
        result = run_program(compile_schedule(schedule), source, settings, trace_path=path)
        assert result is not None
        profile = profile_from(path, like=schedule.problem.profile).profile
    own = replace(schedule, problem=replace(schedule.problem, profile=profile), timing=None)
    told = attribute(schedule, result.measured)
    return {
        "planned_ms": simulate(schedule).makespan,
        "measured_ms": result.measured.known_timing.makespan,
        "planned_on_own_times_ms": simulate(own).makespan,
        "host": max(rank.host for rank in told.ranks) / told.measured,
        "planned_peak": [rank.planned_peak for rank in told.ranks],
        "peak": result.peak_memory,
    }, own


def difference(family: str, device: str) -> float:
    """Compare the gradients of a family's schedule on two ranks with those of one process, in
    float64.

    Returns the largest difference, relative to the largest gradient of the same parameter.
    """
    source = Source(4, 64, 2, 32, dtype=torch.float64, home=device)
    stages = (StageProfile(1.0, 1.0, 1.0),) * (2 * CHUNKS.get(family, 1))
    program = compile_schedule(build_family(family, Profile(stages, 2), 4))
    found = launch_ranks(_gradients, 2, (program, source, device), device=device)
    expected = _expected(source, len(stages), device)
    own = {name: g for row in found.values() for name, g in row.items()}
    assert own.keys() == expected.keys()
    return max(float((own[n] - e).abs().max() / e.abs().max()) for n, e in expected.items())


def _gradients(program: Program, source: GPT, device: str) -> dict[str, Tensor]:
    stages = source.stages(program.schedule.problem.stages)
    pipeline = Pipeline(program, stages, loss=source.loss, device=device)
    inputs, target = _batch(source, device)
    pipeline.step(inputs, target=target, return_outputs=False)
    pipeline.close()
    return _named(pipeline.modules)


def _expected(source: GPT, count: int, device: str) -> dict[str, Tensor]:
    modules = {s: make() for s, make in enumerate(source.stages(count))}
    whole, (inputs, targets) = nn.Sequential(*modules.values()), _batch(source, device)
    for x, target in zip(inputs, targets, strict=True):
        (source.loss(whole(x), target) / len(inputs)).backward()  # type: ignore[no-untyped-call]
    return _named(modules)


def _batch(source: GPT, device: str) -> list[list[Tensor]]:
    """The inputs and the targets of four microbatches."""
    return [[part.to(device) for part in half] for half in source.batch(0, 4)]


def _named(modules: dict[int, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{stage}.{name}": parameter.grad.cpu()
        for stage, module in modules.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
