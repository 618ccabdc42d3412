"""Bounds where microbatches go both ways, held against the best of all orders."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.model.ops import IntArray, Op, OpKind, pack
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.bounds.general import work
from pipeloom.solver.bounds.several_stages.general_placement import (
    visits_head_tail,
    visits_throughput,
)

KINDS = (OpKind.F, OpKind.B, OpKind.W)


def orders(problem: Problem, rank: int) -> Iterator[IntArray]:
    """All of a rank's that keep its limit: a walk over how far each (stage, microbatch) is."""
    owner = problem.owner
    pairs = [(int(s), int(j)) for s, j in np.argwhere(owner == rank)]
    stages, limit = problem.profile.stages, problem.memory_limit[rank] + 1e-9

    def walk(done: tuple[int, ...], ops: list[Op]) -> Iterator[IntArray]:
        if min(done) == len(KINDS):
            yield pack(ops)
        for at, (stage, microbatch) in enumerate(pairs):
            if done[at] < len(KINDS):
                after = (*done[:at], done[at] + 1, *done[at + 1 :])
                held = sum(
                    (0.0, stages[s].m_b, stages[s].m_w, 0.0)[n]
                    for (s, _), n in zip(pairs, after, strict=True)
                )
                if held <= limit:
                    yield from walk(after, [*ops, Op(KINDS[done[at]], stage, microbatch)])

    return walk((0,) * len(pairs), [])


def optimum(problem: Problem) -> float:
    rows = [list(orders(problem, rank)) for rank in range(problem.ranks)]
    lengths = [len(row[0]) for row in rows]
    simulator = Simulator(problem, np.append(0, np.cumsum(lengths)), Costs.of(problem))
    return min(simulator.cost(np.concatenate(choice)) for choice in product(*rows))


def instance(rng: np.random.Generator, ranks: int, microbatches: int, limit: float) -> Problem:
    stages = tuple(
        StageProfile(*rng.uniform(0.2, 3.0, 3), m_b, m_b * rng.uniform(0.2, 1.0))
        for m_b in rng.uniform(0.7, 1.0, ranks)
    )
    profile = Profile(stages, ranks, float(rng.choice([0.0, 0.3, 2.0])))
    placement = Placement.bidirectional(ranks)
    return Problem(profile, microbatches, placement, (limit,) * ranks)


@pytest.mark.parametrize(
    ("ranks", "microbatches", "limit", "number"),
    [(2, 2, math.inf, 10), (2, 3, 1.0, 6), (4, 2, 1.0, 20), (4, 2, 1.3, 10), (4, 3, 1.0, 4)],
)
def test_bounds_hold(ranks: int, microbatches: int, limit: float, number: int) -> None:
    """Where one visit fits, or one and what another's W needs, idle times add up."""
    rng = np.random.default_rng(ranks * microbatches)
    idle = False
    for _ in range(number):
        problem = instance(rng, ranks, microbatches, limit)
        best = optimum(problem) * (1 + 1e-9)
        assert lower_bound(problem).value <= best
        assert visits_throughput(problem).value <= best
        bound = visits_head_tail(problem).value
        assert bound <= best
        idle |= bound > work(problem).value * (1 + 1e-9)
    assert idle == (ranks > 2)


def test_little_memory_costs_time() -> None:
    """F's of 1, a way back of 6 from the middle of four ranks, room for two: it idles there at both
    ends.

    Rank 1, turns 5 and 3 (its stages 1 and 2): before its first B it has two F's, 3 - 2; after its
    last F the other's B and W and its own F, 3 - 1 - 2.
    """
    profile = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 4, 4, 0.0)
    problem = Problem(profile, 8, Placement.bidirectional(4), (2.0,) * 4)
    assert visits_head_tail(problem).value == pytest.approx(24.0 + 1.0)
    assert visits_throughput(problem).value == pytest.approx(8 * (0.5 * (7 + 1 + 1 + 1) + 0.5) / 2)
