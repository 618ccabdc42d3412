"""The oracle against every order there is, each timed by the simulator."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from tests.support.oracle import exhaustive_optimum

KINDS = (OpKind.F, OpKind.B, OpKind.W)


def _orders(stages: tuple[int, ...], microbatches: int) -> list[tuple[Op, ...]]:
    """Every order of a rank's ops in which F, B, W of one microbatch and stage are in order."""
    ops = [Op(k, s, j) for s in stages for j in range(microbatches) for k in KINDS]

    def fits(order: tuple[Op, ...]) -> bool:
        at = {op: i for i, op in enumerate(order)}
        return all(
            at[Op(OpKind.F, s, j)] < at[Op(OpKind.B, s, j)] < at[Op(OpKind.W, s, j)]
            for s in stages
            for j in range(microbatches)
        )

    return [order for order in itertools.permutations(ops) if fits(order)]


def _optimum(problem: Problem) -> float:
    best = math.inf
    choices = [
        _orders(problem.placement.stages_of(rank), problem.microbatches)
        for rank in range(problem.ranks)
    ]
    for order in itertools.product(*choices):
        try:
            timing = simulate(Schedule.of(problem, order, "all"))
        except InvalidScheduleError:
            continue
        if all(p <= m for p, m in zip(timing.peak_memory, problem.memory_limit, strict=True)):
            best = min(best, timing.cost(problem.objective))
    return best


def _random_stage(rng: random.Random) -> StageProfile:
    return StageProfile(rng.randint(0, 4), rng.randint(0, 4), rng.randint(0, 4), 1.0, 0.5)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("limit", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_one_stage_a_rank(seed: int, limit: float, objective: Objective) -> None:
    rng = random.Random(seed)
    profile = Profile(tuple(_random_stage(rng) for _ in range(2)), 2, rng.choice([0.0, 1.0, 9.0]))
    problem = Problem.linear(profile, 2, limit, objective)
    assert exhaustive_optimum(problem) == _optimum(problem)


@pytest.mark.parametrize("owners", [(0, 0), (0, 1, 0), (0, 1, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_several_stages_a_rank(seed: int, owners: tuple[int, ...]) -> None:
    rng = random.Random(seed)
    ranks, microbatches = 1 + max(owners), 2 if len(owners) == 2 else 1
    profile = Profile(tuple(_random_stage(rng) for _ in owners), ranks, 1.0)
    placement = Placement.of_stages(owners)
    problem = Problem(profile, microbatches, placement, (2.5,) * ranks)
    if len(owners) == 2:  # 12 ops on one rank: every order costs the work
        assert exhaustive_optimum(problem) == pytest.approx(
            2 * sum(s.t_f + s.t_b + s.t_w for s in profile.stages)
        )
    else:
        assert exhaustive_optimum(problem) == _optimum(problem)


def test_the_period_may_gain_from_another_first_microbatch() -> None:
    """Rank 1 starts with microbatch 1, hence later, and so waits less for its first B."""
    stages = (StageProfile(10, 1, 1), StageProfile(6, 13, 11), StageProfile(10, 3, 0))
    problem = Problem.linear(Profile(stages, 3, 0.0), 3)
    assert exhaustive_optimum(problem) < exhaustive_optimum(problem, canonical=True)
