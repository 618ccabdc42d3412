"""Profiles, plans and steps of ranks that share a device, and gradients of two of them."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from examples.gpt import GPT
from pipeloom.compiler import compile_schedule
from pipeloom.ir import (
    InputError,
    Objective,
    OpKind,
    Problem,
    Profile,
    Program,
    Schedule,
    StageProfile,
    simulate,
)
from pipeloom.planner.measured.rescaled import with_times
from pipeloom.report import attribute
from pipeloom.runtime import RunSettings, launch_ranks, measure_profile
from pipeloom.runtime.stages.store import made
from pipeloom.runtime.train.loop import train_step
from pipeloom.runtime.train.train import make_pipeline
from pipeloom.solver import build_family, solve

T = TypeVar("T", bound=nn.Module)
WARMUP, STEPS, ROUNDS, PLAN, TIMEOUT = 3, 5, 6, 8.0, 150.0
WITHIN = {"zb-1p": 1, "zb-2p": 2}  # P x M_B
CHUNKS = {"zb-v": 2}


@dataclass(frozen=True)
class Source(GPT):
    """The GPT of the examples, made on its device (a CPU draws its weights for many seconds)."""

    home: str = "cpu"

    def _unit(self, place: int, build: Callable[[], T]) -> T:
        with torch.device(self.home):
            return super()._unit(place, build)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95))


def gpu(device: str) -> str:
    """Raises InputError where there is none."""
    if device != "cuda":
        raise InputError("device: expected a GPU, got none")
    return device


def measured(
    ranks: int, microbatches: int, names: Sequence[str], device: str, *, tiny: bool
) -> dict[str, Any]:
    """Each schedule planned on a profile of all ranks computing at once, and run.

    Under a multi-process server (MPS) each rank computes on its share of the processors. The
    environment keeps the share, so each case has a process of its own.
    """
    os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(100 // ranks)
    source = Source(4, 32, 2, 16, home=device)
    if not tiny:
        source = Source(16, 2048, 16, 1024, 4, home=gpu(device))
    found: dict[str, Any] = {"tiny": tiny, "device": device, "profiles": {}, "schedules": {}}
    found["shares"] = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    profiles: dict[int, Profile] = {}
    for name in names:
        chunks = CHUNKS.get(name, 1)
        if chunks not in profiles:
            kept: dict[str, Any] = {
                "repeats": ROUNDS,
                "warmup": 1,
                "dtype": torch.bfloat16,
                "device": device,
            }
            measurement = measure_profile(source, stages=ranks * chunks, ranks=ranks, **kept)
            profiles[chunks] = measurement.profile
            found["profiles"][str(chunks)] = measurement.record()
        schedule = planned(name, profiles[chunks], microbatches)
        found["schedules"][name], own = run(schedule, source, device)
        if name == "1f1b":
            tuned, _ = run(planned("zb-2p", own.problem.profile, microbatches), source, device)
            plain, plan = found["schedules"][name], simulate(own).makespan
            found["tuned_gain"] = 1 - tuned["measured_ms"] / plain["measured_ms"]
            found["planned_gain"] = 1 - tuned["planned_ms"] / plan
    return found


def planned(name: str, profile: Profile, microbatches: int) -> Schedule:
    """A family's schedule, or the optimizer's within once or twice P x M_B."""
    if name not in WITHIN:
        return build_family(name, profile, microbatches, objective=Objective.MAKESPAN)
    limit = WITHIN[name] * profile.ranks * max(stage.m_b for stage in profile.stages)
    problem = Problem.linear(profile, microbatches, limit, Objective.MAKESPAN)
    return solve(problem, time_limit=PLAN)


def run(schedule: Schedule, source: GPT, device: str) -> tuple[dict[str, Any], Schedule]:
    """Figures of measured steps, and the same order planned on the times of its own ops.

    ``host``: the largest share of a step that a rank idles with all inputs there.
    """
    settings = RunSettings(steps=WARMUP + STEPS, dtype="bfloat16", device=device)
    arguments = (compile_schedule(schedule), source, settings)
    ranks = schedule.problem.ranks
    found = launch_ranks(_steps, ranks, arguments, device=device, timeout=TIMEOUT)
    traces, peaks, backend = found[0]
    traces.sort(key=lambda trace: trace.known_timing.makespan)
    middle, own = traces[len(traces) // 2], on_measured_times(schedule, traces)
    told = attribute(schedule, middle)
    return {
        "backend": backend,
        "planned_ms": simulate(schedule).makespan,
        "measured_ms": middle.known_timing.makespan,
        "planned_on_own_times_ms": simulate(own).makespan,
        "host": max(rank.host for rank in told.ranks) / told.measured,
        "causes_ms": asdict(told.causes) | {"slack": told.slack},
        "planned_peak": [rank.planned_peak for rank in told.ranks],
        "peak": peaks,
    }, own


def _steps(
    program: Program, source: GPT, settings: RunSettings
) -> tuple[list[Schedule], list[float], str]:
    """The traces of the measured steps, each rank's peak of activations, and the backend."""
    pipeline = make_pipeline(program, source, settings)
    runs = [train_step(pipeline, source, step, settings) for step in range(settings.steps)]
    traces = [pipeline.gather_trace(each.marks) for each in runs[WARMUP:]]
    peaks = pipeline.gather(max(each.peak for each in runs))
    pipeline.close()
    return traces, peaks, dist.get_backend()


def on_measured_times(schedule: Schedule, traces: Sequence[Schedule]) -> Schedule:
    """The same order, planned on what its own ops took: what is left is no op's fault."""
    took: defaultdict[tuple[OpKind, int], list[float]] = defaultdict(list)
    for op, time in (each for trace in traces for each in trace.op_times()):
        took[op.kind, op.stage].append(time)
    medians = {key: statistics.median(times) for key, times in took.items()}
    profile = schedule.problem.profile
    stages = tuple(_stage(old, s, medians) for s, old in enumerate(profile.stages))
    problem = replace(schedule.problem, profile=replace(profile, stages=stages))
    return replace(schedule, problem=problem, timing=None)


def _stage(old: StageProfile, stage: int, took: dict[tuple[OpKind, int], float]) -> StageProfile:
    """The stage with these times; a BW is shared by B and W as before."""
    t_b, t_w = took.get((OpKind.B, stage)), took.get((OpKind.W, stage))
    if t_b is None or t_w is None:
        whole = took[OpKind.BW, stage]
        t_b = whole * old.t_b / (old.t_b + old.t_w)
        t_w = whole - t_b
    return replace(with_times(old, took[OpKind.F, stage], t_b, t_w), t_bw=None)


def difference(family: str, device: str) -> float:
    """A family's gradients on two ranks against one process's, in float64: the largest difference
    relative to the largest gradient."""
    source = GPT(layers=4, width=64, heads=2, context=32, dtype=torch.float64)
    stages = (StageProfile(1.0, 1.0, 1.0),) * (2 * CHUNKS.get(family, 1))
    program = compile_schedule(build_family(family, Profile(stages, 2), 4))
    found = launch_ranks(_gradients, 2, (program, source, device), device=device)
    expected = _expected(source, program.schedule.problem.stages, 4, device)
    pairs = [(g, expected[name]) for row in found.values() for name, g in row.items()]
    assert {name for row in found.values() for name in row} == {*expected}
    return max(float((g - e).abs().max() / e.abs().max()) for g, e in pairs)


def _gradients(program: Program, source: GPT, device: str) -> dict[str, Tensor]:
    settings = RunSettings(dtype="float64", device=device)
    pipeline = make_pipeline(program, source, settings)
    train_step(pipeline, source, 0, settings)
    pipeline.close()
    return _named(pipeline.modules)


def _expected(source: GPT, count: int, microbatches: int, device: str) -> dict[str, Tensor]:
    modules = {s: made(stage, s).to(device) for s, stage in enumerate(source.stages(count))}
    for inputs, target in zip(*source.batch(0, microbatches), strict=True):
        out = inputs.to(device)
        for module in modules.values():
            out = module(out)
        (source.loss(out, target.to(device)) / microbatches).backward()  # type: ignore[no-untyped-call]
    return _named(modules)


def _named(modules: dict[int, nn.Module]) -> dict[str, Tensor]:
    return {
        f"{stage}.{name}": parameter.grad.cpu()
        for stage, module in modules.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
