"""Certificates by what a rank can have run by when: one linear program of a rank at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

import numpy as np

from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.certificates.flow import FlowFacts
from pipeloom.ir.verify.schedule_facts import Facts

from ..bounds.several_stages.rank_flow import FINER, STEPS, latest_and_longest, placed_model
from ..core.relaxations import relaxed
from ..core.stopping import StoppingCriterion
from ..core.unlike import least
from .refutation import MARGIN, refuted

LESS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)  # of the bound, that is given up where it takes that


def refuted_by_flow(
    schedule: Schedule, facts: Facts, known: float, stop: StoppingCriterion
) -> tuple[float, dict[str, Any]] | None:
    """The largest bound found, and the argument; None where there is none.

    Raises NotProvenError where the argument does not speak of the instance.
    """
    if schedule.timing is None or schedule.problem.placement.passing is not Passing.ACTIVATIONS:
        return None
    cost = schedule.timing.cost(schedule.problem.objective)
    for less in LESS:
        value = known * (1 - less) * (1 - MARGIN)
        for argument in _arguments(schedule):
            if stop():
                return None
            instance = _stepped(facts, argument, value, cost)
            nodes = refuted(instance, value, stop)[1] if instance else None
            if instance and nodes:
                return value, argument | {"steps": instance.steps, "nodes": nodes}
    return None


def _arguments(schedule: Schedule) -> Iterator[dict[str, Any]]:
    ranks = latest_and_longest(placed_model(relaxed(least(schedule.problem))))
    for rank, until in zip(ranks, "BW", strict=True):
        yield {"kind": "rank-flow", "rank": rank.rank, "until": until}


def _stepped(facts: Facts, argument: dict[str, Any], value: float, cost: float) -> FlowFacts | None:
    """The instance with so many steps that ways lose least as they are rounded down to whole ones;
    None where the rank has no time left."""
    rough = FlowFacts.of(facts, argument | {"steps": 1})
    span = value - float(rough.beside)
    if span <= 0:
        return None
    ways = np.array([float(way) for *_, way in rough.ways])
    fewest = ceil(span * STEPS / (cost * len(rough.classes)))
    numbers = range(fewest, int(fewest / FINER[0]) + 1)
    steps = min(numbers, key=lambda number: float((ways % (span / number)).sum()))
    return FlowFacts.of(facts, argument | {"steps": steps})
