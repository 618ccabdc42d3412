"""The warning that a run exceeds the memory limit of its schedule."""

from __future__ import annotations

from collections.abc import Sequence

from pipeloom.ir.model.program import Program
from pipeloom.ir.units import amount

LEAST_BYTES = 1000.0  # per microbatch; if a profile has less, its unit of memory is not bytes


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
    peak, limit = amount(peaks[rank]), amount(limits[rank])
    return f"rank {rank} held {ratio:.4g}x the plan's memory limit ({peak} bytes, limit {limit})"
