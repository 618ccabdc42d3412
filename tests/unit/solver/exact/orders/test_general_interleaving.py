"""The model of all orders on ranks with several stages, held against the best of all schedules."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.bound import Bound
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.exact.orders.general_interleaving import GeneralInterleaving, rank_orders
from pipeloom.solver.exact.orders.rank_orders import BACKWARD, FORWARD, WEIGHT, OpClass
from pipeloom.solver.exact.orders.target_bisection import ask
from tests.property.small_exact.instances import problem_of
from tests.support.oracle import exhaustive_optimum, known_optimum

KINDS = ("v", "several stages a rank", "two copies")


def asked(problem: Problem, target: float) -> Incumbent:
    """What one question about schedules of at most ``target`` proves and finds."""
    best = Incumbent(problem, Bound(0.0, "none", ""), SolveOptions(time_limit=30))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    ask(best, partial(GeneralInterleaving, problem), target, best.budget(), seed=0)
    assert best.method in {"one-at-a-time", "cp-sat"}  # "interleaving" would read as a placement
    return best


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", [range(7), pytest.param(range(7, 150), marks=pytest.mark.slow)])
def test_no_cost_of_a_schedule_is_refuted_and_most_just_below_are(kind: str, seeds: range) -> None:
    refuted = known = 0
    for seed in seeds:
        problem = problem_of(kind, seed)
        least = None if overlap_saves(problem) else known_optimum(problem, nodes=100_000)
        if not least:
            continue
        known += 1
        assert asked(problem, least * (1 + 1e-6)).bound.value <= least * (1 + 1e-9), seed
        refuted += asked(problem, least * (1 - 1e-3)).bound.value > 0
    assert known > len(seeds) / 5
    assert refuted > known / 2


def test_the_first_op_of_a_rank_may_start_late() -> None:
    """The best period is had where a rank's first op starts after its input has come."""
    stages = (
        StageProfile(4.0, 0.0, 0.0, 1.0, 0.8963717070571565),
        StageProfile(2.0, 2.0, 4.0, 1.0, 0.0010422488710475353),
        StageProfile(4.0, 0.0, 0.0, 1.0, 0.6307896659086383),
        StageProfile(0.0, 0.0, 3.0, 1.0, 0.28182757224821897),
    )
    limit = 4.2260567181501125
    problem = Problem(Profile(stages, 2, 0.0), 3, Placement.interleaved(2, 2), (limit, limit))
    assert asked(problem, 33.0 * (1 + 1e-6)).bound.value <= 33.0
    assert asked(problem, 33.0 * (1 - 1e-3)).bound.value > 0


@pytest.mark.parametrize("seed", range(4))
def test_two_copies_whose_bw_takes_less_than_b_and_w(seed: int) -> None:
    times = np.random.default_rng(seed).uniform(1, 5, (2, 3)).tolist()
    stages = tuple(StageProfile(f, b, w, 1.0, 0.5, t_bw=0.6 * (b + w)) for f, b, w in times)
    problem = Problem(Profile(stages, 2, 0.5), 2, Placement.bidirectional(2), (2.0, 2.0))
    assert not overlap_saves(problem)
    least = exhaustive_optimum(problem)
    assert asked(problem, least * (1 + 1e-6)).bound.value <= least * (1 + 1e-9)


def a_v(objective: Objective = Objective.PERIOD) -> Problem:
    stages = (StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 4
    return Problem(Profile(stages, 2, 0.0), 4, Placement.v(2), (2.0, 2.0), objective)


def test_memory_decides_most_pairs() -> None:
    """Two chunks fit: F of microbatch 2 on the lower stage waits for the B of microbatch 0."""
    rank = rank_orders(a_v())[0]
    f, b = OpClass(FORWARD, 0, 0), OpClass(BACKWARD, 0, 0)
    assert rank.beside(f, b, 0) == (1, range(1, 2))
    assert rank.beside(b, f, 2) == (1, range(1, 2))
    assert rank.beside(OpClass(WEIGHT, 0, 0), f, 3) == (1, range(1, 3))
    above = rank_orders(a_v())[1]
    assert above.beside(OpClass(FORWARD, 2, 0), b._replace(stage=1), 0) == (1, range(1, 1))


@pytest.mark.parametrize("objective", Objective)
def test_a_v_in_the_memory_of_one_microbatch_is_solved(objective: Objective) -> None:
    """One microbatch at a time passes both of a rank's stages."""
    problem = replace(a_v(objective), microbatches=3)
    least = exhaustive_optimum(problem)
    assert asked(problem, least * 1.01).cost == pytest.approx(least, rel=0.01)
    assert asked(problem, least * 0.99).bound.value == pytest.approx(least * 0.99)


def test_a_limit_above_all_that_can_be_held_is_none() -> None:
    problem = replace(a_v(), memory_limit=(1e12,) * a_v().ranks)
    assert all(rank.limit is None for rank in rank_orders(problem))
    GeneralInterleaving(problem, 1.0, 100.0)
