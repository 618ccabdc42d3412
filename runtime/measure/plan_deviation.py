"""Warnings that a run differs from what its schedule was planned for."""

from __future__ import annotations

from collections.abc import Sequence

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import OPTIMIZED, Schedule
from pipeloom.ir.units import amount

LEAST_BYTES = 1000.0  # per microbatch; if a profile has less, its unit of memory is not bytes
LITTLE = 1.05  # times the limit: up to this, an excess does not suggest a model of another size
ROUNDING = 1e-6  # relative difference of times that may be due to rounding


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
