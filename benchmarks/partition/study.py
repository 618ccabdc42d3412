"""Each instance cut in three ways, with as much time for each."""

from __future__ import annotations

from itertools import count, pairwise
from time import monotonic
from typing import Any

from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.core.options import Order
from pipeloom.solver.core.stopping import Budget
from pipeloom.solver.optimize import optimize
from pipeloom.solver.partition.candidate_pool import Way
from pipeloom.solver.partition.search import best_partition

from .instances import Instance, instance

SAME = 1e-6
"""Costs that differ by less, relative, are equal."""


def searched(seed: int, seconds: float) -> dict[str, Any]:
    """The costs that the ways reach on one instance, ``seconds`` for each."""
    given = instance(seed)
    ways = {way.value: _way(given, way, seconds) for way in Way}
    return {
        "seed": seed,
        "ranks": given.profile.ranks,
        "blocks": given.blocks,
        "microbatches": given.microbatches,
        "placement": given.placement.name,
        "objective": given.objective.value,
        "limit": given.limit,
        "ways": ways,
    }


def _way(given: Instance, way: Way, seconds: float) -> dict[str, Any]:
    began, seeds = monotonic(), count()

    def search(problem: Problem, name: str, share: float, start: Order | None) -> Schedule:
        return optimize(problem, time_limit=seconds * share, start=start, seed=next(seeds))

    found = best_partition(
        given.profile,
        given.microbatches,
        [given.placement],
        search,
        way=way,
        objective=given.objective,
        budget=Budget(seconds=seconds),
    )
    took = round(monotonic() - began, 1)
    if found.best is None:
        return {"cost": None, "why_not": found.why_not[given.placement.name], "seconds": took}
    assert found.best.schedule is not None
    violations = verify_schedule(dump_schedule(found.best.schedule))
    assert violations == [], violations
    sizes = [b - a for a, b in pairwise((*found.best.cut, len(given.profile.layers)))]
    return {
        "cost": found.best.cost,
        "layers": sizes,
        "bound_of_the_cut": found.best.bound,
        "bound_of_all_cuts": found.bound,
        "seconds": took,
    }


def gain(cell: dict[str, Any], other: str) -> float | None:
    """How much less the joint way costs than another one; None where either has no schedule."""
    costs = [cell["ways"][way]["cost"] for way in ("joint", other)]
    return None if None in costs else 1 - costs[0] / costs[1]


def better(cell: dict[str, Any]) -> bool:
    """Whether the joint way is strictly better than both others."""
    gains = [gain(cell, other) for other in ("balanced", "even")]
    fits = cell["ways"]["joint"]["cost"] is not None
    return fits and all(each is None or each > SAME for each in gains)


def gap(cell: dict[str, Any]) -> float | None:
    """How far any cut could be better than the joint way's schedule, at most; None where it has
    none."""
    joint = cell["ways"]["joint"]
    if joint["cost"] is None:
        return None
    bound, cost = float(joint["bound_of_all_cuts"]), float(joint["cost"])
    return max(0.0, 1 - bound / cost)
