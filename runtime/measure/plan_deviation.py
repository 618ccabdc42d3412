"""Explains why a run took much longer or shorter than planned, and where memory differs."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping, Sequence

from torch import nn

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import OPTIMIZED, Schedule
from pipeloom.ir.units import amount, counted, memory_size

from ..dtensors import is_dtensor

LEAST_BYTES = 1000.0  # per microbatch; smaller values are not in bytes
LITTLE = 1.05  # times the limit; a smaller excess does not suggest another model size
ROUNDING = 1e-6
ALIKE = 0.05  # relative difference of parameter bytes between slightly different cuts
DTYPES = (0.25, 0.5, 1.0, 2.0, 4.0)  # possible ratios of element sizes
FAR = 1.5  # longer / shorter; less is noise on shared machines
SHORT = 1.0  # milliseconds; the host's work between ops is about a tenth of that
UNMEASURED = "all ops of the profile take 1 ms, as profile --memory-only writes where none was run"
QUICK = "ops took less than profiled; where cores were busier then, profile again"


def why_far_off(planned: Schedule, measured: Schedule) -> str | None:
    """Returns a note if the measured makespan is far from the planned one, else None.

    It is called in a process of the run, and names the cores and ranks of its machine.
    """
    plan = (planned.timing or simulate(planned)).makespan
    if measured.timing is None or plan <= 0:
        return None
    ratio = measured.timing.makespan / plan
    if 1 / FAR < ratio < FAR:
        return None
    if {t for s in planned.problem.profile.stages for t in (s.t_f, s.t_b, s.t_w)} == {1.0}:
        reason = UNMEASURED
    else:
        reason = QUICK if ratio < 1 else _why_slow(planned)
    times = f"{ratio:.2g}" if ratio < 1 else f"{ratio:.1f}"
    return f"{times}x the planned makespan: {reason}; see docs/profiling.md"


def _why_slow(planned: Schedule) -> str:
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", planned.problem.ranks))
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    stages = planned.problem.profile.stages
    op = statistics.median(t for stage in stages for t in (stage.t_f, stage.t_b, stage.t_w))
    reasons = {
        f"{ranks} ranks share {cores} core{'s' * (cores > 1)}": ranks > cores,
        f"ops are short, {op:.2g} ms in the median": op < SHORT,
    }
    found = ", ".join(reason for reason, holds in reasons.items() if holds)
    return found or "the profile may be of another model or machine"


def other_size(planned: Schedule, sequences: int | None) -> str | None:
    """Returns a note if microbatches have other ``sequences`` than the profile's, else None."""
    measured = planned.problem.profile.micro_batch
    if None in (measured, sequences) or measured == sequences:
        return None
    return (
        f"the plan's times and memory are of microbatches of {counted(measured or 0, 'sequence')}, "
        f"as the profile's micro_batch says; these have {sequences}"
    )


def parameter_bytes(stages: Mapping[int, nn.Module]) -> dict[int, int]:
    """Returns the bytes of each stage's parameters, without stages that are sharded."""
    each = {s: list(module.parameters()) for s, module in stages.items()}
    whole = {s: some for s, some in each.items() if not any(map(is_dtensor, some))}
    return {s: sum(p.nbytes for p in some) for s, some in whole.items()}


def other_model(planned: Schedule, held: Mapping[int, int]) -> str | None:
    """Returns a note if the stages' parameter bytes (by stage) are not the profile's, else None.

    Returns None, too, if the profile has no ``weight_bytes``, or if only the dtypes seem to differ.
    """
    profiled = [planned.problem.profile.stages[s].weight_bytes for s in held]
    expected, found = sum(size or 0.0 for size in profiled), sum(held.values())
    if None in profiled or not expected:
        return None
    if any(abs(found / expected / ratio - 1) < ALIKE for ratio in DTYPES):
        return None
    return (
        f"the stages have {memory_size(found)} of parameters, those of the profile "
        f"{memory_size(expected)}: the plan's times and memory are of another model or cut"
    )


def made_without_barrier(planned: Schedule) -> str | None:
    """Returns a note if the ranks wait for each other but the schedule assumes they do not.

    That is, if it was optimized for the period and its makespan is longer; else None.
    """
    made_for_period = planned.problem.objective is Objective.PERIOD
    if not made_for_period or planned.report is None or planned.report.family != OPTIMIZED:
        return None
    timing = planned.timing or simulate(planned)
    if timing.makespan <= timing.period * (1 + ROUNDING):
        return None
    return (
        "all ranks wait before they step, as clipping or loss scaling need, but the schedule was "
        "made for the period, which is without: compile --post-validation waits for none; or "
        'optimize --objective makespan, or put "barrier": true into the profile'
    )


def over_the_limit(program: Program, peaks: Sequence[int]) -> str | None:
    """Returns a note about the rank whose measured peak (bytes) most exceeds its limit, else None.

    Returns None, too, if the profile's unit of memory is larger than a byte.
    """
    problem = program.schedule.problem
    limits = problem.memory_limit
    over = [
        (peak / limit if limit else float("inf"), rank)
        for rank, (peak, limit) in enumerate(zip(peaks, limits, strict=True))
        if peak > limit
    ]
    if not over or max(stage.m_b for stage in problem.profile.stages) < LEAST_BYTES:
        return None
    ratio, rank = max(over)
    figures = f"({amount(peaks[rank])} bytes, limit {amount(limits[rank])})"
    if ratio <= LITTLE:
        more = f"{amount(peaks[rank] - limits[rank])} bytes more than the plan's memory limit"
        return f"rank {rank} held {more} {figures}, which leaves out messages received ahead"
    return (
        f"rank {rank} held {ratio:.3g}x the plan's memory limit {figures}: do seq, micro_batch or "
        "dtype differ from the profile's?"
    )
