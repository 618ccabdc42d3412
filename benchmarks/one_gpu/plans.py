"""Profiles of ranks that share a GPU, and the schedules that are planned on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.planner.measured.rescaled import with_times
from pipeloom.runtime.profiling.profiler import measure_profile
from pipeloom.solver.families import build_family

from .sizes import Size

CHUNKS = {"zb-v": 2}  # stages a rank; of all others one


def profile(size: Size, ranks: int, chunks: int, device: str) -> Measurement:
    return measure_profile(
        size.model,
        stages=ranks * chunks,
        ranks=ranks,
        repeats=size.rounds,
        warmup=1,
        dtype=torch.bfloat16,
        device=device,
        name=f"{ranks} ranks of one GPU, {chunks} stages each",
    )


def planned(size: Size, name: str, profile: Profile) -> Schedule:
    """The schedule ``name`` on a profile; ``zb-1p`` and ``zb-2p`` are the optimizer's, within once
    and twice P x M_B."""
    microbatches = size.ranks[profile.ranks]
    if name not in WITHIN:
        return build_family(name, profile, microbatches, objective=Objective.MAKESPAN)
    limit = WITHIN[name] * profile.ranks * max(stage.m_b for stage in profile.stages)
    problem = Problem.linear(profile, microbatches, limit, Objective.MAKESPAN)
    try:
        return optimized(problem, size.plan)
    except ModuleNotFoundError as error:  # a machine without ortools: published shapes instead
        if error.name is None or error.name.partition(".")[0] not in ("ortools", "pulp"):
            raise
        return build_family(HANDMADE[name], profile, microbatches, objective=Objective.MAKESPAN)


def optimized(problem: Problem, seconds: float) -> Schedule:
    from pipeloom.solver.optimize import optimize

    return optimize(problem, time_limit=seconds)


WITHIN = {"zb-1p": 1, "zb-2p": 2}
HANDMADE = {"zb-1p": "zb-h1", "zb-2p": "zb-h2"}
NAMES = ("1f1b", "zb-1p", "zb-2p", "zb-v", "weipipe-interleave")


def milliseconds(schedule: Schedule) -> float:
    return simulate(schedule).makespan


def on_measured_times(schedule: Schedule, traces: Sequence[Schedule]) -> Schedule:
    """The same order, planned on what its own ops took: what is left is no op's fault."""
    profile = schedule.problem.profile
    took: defaultdict[tuple[OpKind, int], list[float]] = defaultdict(list)
    for trace in traces:
        for op, time in trace.op_times():
            took[op.kind, op.stage].append(time)
    medians = {key: float(np.median(times)) for key, times in took.items()}
    stages = tuple(_stage(old, s, medians) for s, old in enumerate(profile.stages))
    problem = replace(schedule.problem, profile=replace(profile, stages=stages))
    return replace(schedule, problem=problem, timing=None)


def _stage(old: StageProfile, stage: int, took: Mapping[tuple[OpKind, int], float]) -> StageProfile:
    """The stage with these times; a BW is shared by B and W as before."""
    t_b, t_w = took.get((OpKind.B, stage)), took.get((OpKind.W, stage))
    if t_b is None or t_w is None:
        whole = took[OpKind.BW, stage]
        t_b = whole * old.t_b / (old.t_b + old.t_w)
        t_w = whole - t_b
    return replace(with_times(old, took[OpKind.F, stage], t_b, t_w), t_bw=None)


def held_at_most(schedule: Schedule) -> float | None:
    """Bytes of activations that all ranks hold together at most by the plan; None where weights
    are passed."""
    problem, timing = schedule.problem, simulate(schedule)
    if problem.placement.passing is not Passing.ACTIVATIONS:
        return None
    changes: list[tuple[float, float]] = []
    for rank in range(problem.ranks):
        for op, begin, end in zip(
            schedule.ops(rank), timing.start[rank], timing.end[rank], strict=True
        ):
            stage = problem.profile.stages[op.stage]
            at, change = CHANGES[op.kind.name](stage.m_b, stage.m_w, float(begin), float(end))
            changes.append((at, change))
    live = most = 0.0
    for _, change in sorted(changes):  # what is given back at a moment goes before what is taken
        live += change
        most = max(most, live)
    return most


Change = Callable[[float, float, float, float], tuple[float, float]]
CHANGES: Mapping[str, Change] = {
    "F": lambda m_b, m_w, begin, end: (begin, m_b),
    "B": lambda m_b, m_w, begin, end: (end, m_w - m_b),
    "W": lambda m_b, m_w, begin, end: (end, -m_w),
    "BW": lambda m_b, m_w, begin, end: (end, -m_b),
}
