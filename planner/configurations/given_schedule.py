"""A step with the order of ops of a given schedule, such as one that ``plan`` wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import OpKind, fields_of
from pipeloom.ir.model.schedule import Schedule, Updates

from ..inputs.documents import Document, Planned, read_schedule
from ..prediction.setup import OpOrder, placement_of
from ..prediction.step import StepTimes
from .configuration import PLACED_BY, has_placement


def is_schedule(given: Any) -> bool:
    """Whether it is a schedule or its file (``-``, a name with a dot or a slash) instead of a
    family's name."""
    if isinstance(given, str):
        return given == "-" or "." in given or "/" in given
    return isinstance(given, Schedule | Planned | Mapping | os.PathLike)


def placed_steps(step: StepTimes) -> Iterator[StepTimes]:
    """The step with each placement that has its number of stages per rank, by a family with it."""
    run = step.setup.run
    for placement, family in PLACED_BY.items():
        if has_placement(placement, run):
            yield step.scheduled(family)


def with_schedule(step: StepTimes, given: Schedule | Planned | Document) -> StepTimes:
    """``step`` with the order of ops of a given schedule.

    Raises InputError if the run has other numbers of stages or microbatches, or another placement.
    """
    schedule, where = read_schedule(given)
    kinds, _, _ = fields_of(np.concatenate(schedule.order))
    passing, moved = schedule.problem.placement.passing, bool((kinds == OpKind.O).any())
    again = bool((kinds == OpKind.R).any())
    serves = not any(schedule.pairs) and schedule.updates is Updates.ITERATION
    if serves and (step.cluster.host or not moved):
        for own in placed_steps(step):
            placed = placement_of(own.setup.run, passing)
            owners = placed.matrix(own.setup.run.stages, own.setup.run.microbatches)
            if np.array_equal(owners, schedule.problem.owner):
                order = OpOrder(schedule)
                return replace(own, planned=order, remat=again, offload=moved, passing=passing)
    run, found = step.setup.run, schedule.problem
    raise InputError(
        f"schedule: {where}: expected {run.stages} stages, linear, interleaved or V, on {run.pp} "
        f"ranks, {run.microbatches} microbatches, one op at a time, one update a step, and no "
        f"offload where the cluster has no host link; got {found.stages} stages, "
        f"{found.placement.name}, on {found.ranks} ranks, {found.microbatches} microbatches"
    )
