"""Replicated stages: every rank that runs a replicated stage has a copy of its weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.schedule import Schedule, Status


def replicate(schedule: Schedule, stages: Collection[int]) -> Schedule:
    """Return ``schedule`` with ``stages`` replicated: without their transfers, and with new times.

    Each rank that runs one of these stages keeps a copy of its weights, takes part in one reduction
    of its gradient per iteration, and makes the same optimizer step as the other ranks. Embedding
    and head are often replicated; if they are tied, nothing more is needed for their common
    parameters. Raises InputError for stages that do not exist or whose weights are not sent.
    """
    count, sent = schedule.problem.stages, {t.stage for t in schedule.transfers}
    for stage in stages:
        if not 0 <= stage < count:
            raise InputError(f"replicate: expected stages from 0 to {count - 1}, got {stage}")
        if stage not in sent:
            raise InputError(f"replicate: expected stages whose weights are sent, got {stage}")
    kept = tuple(t for t in schedule.transfers if t.stage not in stages)
    report = schedule.report
    if report is not None:  # bound and status apply to schedules that send these weights
        report = replace(report, status=Status.FEASIBLE, lower_bound=None, bound=None)
    return timed(replace(schedule, transfers=kept, report=report, timing=None))
