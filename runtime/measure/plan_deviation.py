"""Warnings that a run differs from what its schedule was planned for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import OPTIMIZED, Schedule
from pipeloom.ir.units import amount, counted, memory_size

from ..dtensors import is_dtensor

LEAST_BYTES = 1000.0  # per microbatch; if a profile has less, its unit of memory is not bytes
LITTLE = 1.05  # times the limit: up to this, an excess does not suggest a model of another size
ROUNDING = 1e-6  # relative difference of times that may be due to rounding
ALIKE = 0.05  # relative difference of parameter bytes between slightly different cuts
DTYPES = (0.25, 0.5, 1.0, 2.0, 4.0)  # possible ratios of element sizes


def other_size(planned: Schedule, sequences: int | None) -> str | None:
    """Returns a warning if the run's microbatches differ in size from the profile's, else None.

    ``sequences``: the number of sequences in a microbatch of the run; None if unknown.
    """
    measured = planned.problem.profile.micro_batch
    if None in (measured, sequences) or measured == sequences:
        return None
    return (
        f"the plan's times and memory are of microbatches of {counted(measured or 0, 'sequence')}, "
        f"by the profile's micro_batch; these have {sequences}"
    )


def parameter_bytes(stages: Mapping[int, nn.Module]) -> dict[int, int]:
    """Returns the bytes of each stage's parameters, by stage; leaves out stages with DTensors."""
    each = {s: list(module.parameters()) for s, module in stages.items()}
    whole = {s: some for s, some in each.items() if not any(map(is_dtensor, some))}
    return {s: sum(p.nbytes for p in some) for s, some in whole.items()}


def other_model(planned: Schedule, held: Mapping[int, int]) -> str | None:
    """Returns a warning if the stages' parameters differ in size from the profile's, else None.

    ``held``: the bytes of parameters of some stages, by stage; their sum is compared. Returns None
    as well if the profile has no ``weight_bytes``, if the ratio of the bytes suggests that only the
    dtype differs, or if there is only one stage, with fewer bytes than in the profile: the profile
    may count a parameter that is tied between layers several times.
    """
    profiled = [planned.problem.profile.stages[s].weight_bytes for s in held]
    expected, found = sum(size or 0.0 for size in profiled), sum(held.values())
    if None in profiled or not expected or (planned.problem.stages == 1 and found < expected):
        return None
    if any(abs(found / expected / ratio - 1) < ALIKE for ratio in DTYPES):
        return None
    return (
        f"the stages have {memory_size(found)} of parameters, those of the profile "
        f"{memory_size(expected)}: the plan's times and memory are of another model or cut"
    )


def made_without_barrier(planned: Schedule) -> str | None:
    """Returns a warning if the schedule is unsuitable for a barrier before the optimizer steps.

    It is unsuitable if the optimizer has made it to minimize the period, and its makespan is longer
    than its period. Otherwise, returns None.
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
    """Returns a warning about the rank that most exceeds its memory limit; None if none does.

    ``peaks``: the measured peak bytes of activations of each rank. Returns None as well if memory
    in the profile seems to be in a larger unit than bytes.
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
