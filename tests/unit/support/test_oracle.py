"""The oracle against every order there is, each timed by the simulator."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from pipeloom.ir import (
    InvalidScheduleError,
    Link,
    Objective,
    Op,
    OpKind,
    Placement,
    Problem,
    Profile,
    Schedule,
    StageProfile,
    simulate,
)
from tests.support.oracle import Searched, TooManyOrdersError, exhaustive_optimum, searched

REMAT = ("FBW", "FRBW", "FOLBW")


def _merged(chains: Sequence[tuple[Op, ...]]) -> Iterator[list[Op]]:
    """Every order of the ops of all chains that keeps that of each."""
    if not any(chains):
        yield []
    for n, chain in enumerate(chains):
        if chain:
            rest = [*chains[:n], chain[1:], *chains[n + 1 :]]
            yield from ([chain[0], *order] for order in _merged(rest))


def _orders(stages: Sequence[int], microbatches: int, ways: Sequence[str]) -> list[list[Op]]:
    """Every order of a rank's ops, each microbatch's of a stage in one of these ways."""
    cells = [(s, j) for s in stages for j in range(microbatches)]
    found = []
    for chosen in itertools.product(ways, repeat=len(cells)):
        cells_ways = zip(chosen, cells, strict=True)
        found += _merged([tuple(Op(OpKind[k], *cell) for k in way) for way, cell in cells_ways])
    return found


def _optimum(problem: Problem, ways: Sequence[str] = ("FBW",)) -> float:
    best = math.inf
    choices = [
        _orders(problem.placement.stages_of(rank), problem.microbatches, ways)
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


def test_the_period_may_gain_from_another_first_microbatch() -> None:
    """Rank 1 starts with microbatch 1, hence later, and so waits less for its first B."""
    stages = (StageProfile(10, 1, 1), StageProfile(6, 13, 11), StageProfile(10, 3, 0))
    problem = Problem.linear(Profile(stages, 3, 0.0), 3)
    assert exhaustive_optimum(problem) < exhaustive_optimum(problem, canonical=True)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("owners", "microbatches"), [((0,), 2), ((0, 1), 1), ((0, 0), 1)])
def test_recomputed_and_offloaded(
    owners: tuple[int, ...], microbatches: int, seed: int, objective: Objective
) -> None:
    rng = random.Random(seed)
    stages = tuple(
        replace(
            _random_stage(rng),
            t_r=rng.uniform(0, 3),
            m_r=rng.choice([0.1, 0.5]),
            m_o=rng.choice([0.0, 0.3]),
            offload_bytes=rng.uniform(0, 3e6),
        )
        for _ in owners
    )
    ranks = 1 + max(owners)
    profile = Profile(stages, ranks, 1.0, host_link=Link(0.1, 1.0))
    limit = rng.choice([1.0, 1.2, 1.5, 1.9]) * max(1, len(owners) - ranks + 1)
    problem = Problem(
        profile, microbatches, Placement.of_stages(owners), (limit,) * ranks, objective
    )
    assert exhaustive_optimum(problem) == pytest.approx(_optimum(problem, REMAT))


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("limit", [1.6, 2.5])
@pytest.mark.parametrize("seed", range(2))
def test_unlike_microbatches(seed: int, limit: float, objective: Objective) -> None:
    rng = random.Random(seed)
    stages = tuple(
        StageProfile.of([replace(_random_stage(rng), m_b=rng.uniform(0.6, 1.6)) for _ in range(2)])
        for _ in range(2)
    )
    problem = Problem.linear(Profile(stages, 2, 1.0), 2, limit, objective)
    assert exhaustive_optimum(problem) == pytest.approx(_optimum(problem))


def test_a_search_that_is_cut_off_says_so() -> None:
    problem = Problem.linear(Profile((StageProfile(1, 1, 1),) * 3, 3, 0.5), 3, 2.0)
    assert searched(problem, nodes=20) == Searched(math.inf, False)
    with pytest.raises(TooManyOrdersError):
        exhaustive_optimum(problem, nodes=20)
    assert searched(problem).complete
