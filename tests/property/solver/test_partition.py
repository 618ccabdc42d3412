"""Compares cuts, bounds on cuts and the joint search with exhaustive enumeration."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeloom.ir import LayeredProfile, Objective, Placement, Problem, Profile, Schedule
from pipeloom.solver import (
    Cut,
    Cutter,
    Order,
    Rules,
    Way,
    best_partition,
    is_feasible,
    iteration_time,
    room,
    solve,
)
from tests.support.layered_profiles import layered, model, placement
from tests.support.oracle import exhaustive_optimum

PLACEMENTS = ("linear", "v", "interleaved")
EXAMPLE = model(6, Profile((), 2, 0.1, memory_limit=(6.0, 6.0)))


def every_cut(profile: LayeredProfile, stages: int, rules: Rules) -> list[Cut]:
    """All cuts that the rules allow, by definition."""
    number = len(profile.layers)
    found = []
    for inner in combinations(range(1, number), stages - 1):
        lengths = [b - a for a, b in pairwise((0, *inner, number))]
        most = rules.most or number
        if all(rules.least <= n <= most for n in lengths) and not any(
            profile.tied[start - 1] for start in inner
        ):
            found.append((0, *inner))
    return found


def problem_of(
    profile: LayeredProfile, where: Placement, cut: Cut, microbatches: int, objective: Objective
) -> Problem:
    stages = profile.cut(cut)
    limit = room(stages, where, stages.limit_from(None))
    return Problem(stages, microbatches, where, limit, objective)


RULES = st.sampled_from([Rules(), Rules(1, 3), Rules(2), Rules(2, 3)])


@given(layered(3, 8), RULES, st.integers(1, 2))
def test_even_balanced_and_neighbours_are_among_all_cuts(
    profile: LayeredProfile, rules: Rules, each: int
) -> None:
    cutter = Cutter(profile, each * profile.ranks, rules)
    cuts = every_cut(profile, cutter.stages, rules)
    assert all(map(cutter.allowed, cuts))
    even, balanced = cutter.even(), cutter.balanced()
    assert (even is None) == (balanced is None) == (not cuts)
    if even is None or balanced is None:
        return
    assert even in cuts

    def longest(cut: Cut) -> float:
        return max(stage.t_f + stage.t_b + stage.t_w for stage in profile.cut(cut).stages)

    assert balanced in cuts
    assert longest(balanced) == pytest.approx(min(map(longest, cuts)))
    assert set(cutter.neighbours(even)) <= set(cuts) - {even}


@given(layered(3, 7), RULES, st.sampled_from(PLACEMENTS))
def test_the_smallest_limit_is_that_of_the_cut_that_needs_least(
    profile: LayeredProfile, rules: Rules, name: str
) -> None:
    where = placement(name, profile.ranks)
    cuts = every_cut(profile, len(where.owners), rules)
    assume(cuts)

    def fits(cut: Cut, limit: float, *, device: bool = False) -> bool:
        stages, limits = profile.cut(cut), (limit,) * profile.ranks
        if device:
            stages, limits = replace(stages, device_memory=limits), (math.inf,) * profile.ranks
        return is_feasible(Problem(stages, 1, where, room(stages, where, limits)))

    found = best_partition(profile, 1, [where], searched, rules=rules, memory_limit=0.0).smallest
    assert found is not None
    assert found.cut in cuts
    assert fits(found.cut, found.limit, device=found.device)
    assert not fits(found.cut, found.limit * 0.999, device=found.device)
    if found.proven:
        assert not any(fits(cut, found.limit * 0.999, device=found.device) for cut in cuts)
    if name == "linear":
        assert found.proven
        assert found.device != any(fits(cut, math.inf) for cut in cuts)


def searched(problem: Problem, name: str, share: float, start: Order | None) -> Schedule:
    return solve(problem, solver="cp-sat", work_limit=30.0 * share, start=start)


def hurried(problem: Problem, name: str, share: float, start: Order | None) -> Schedule:
    return solve(problem, solver="heuristic", work_limit=1e-3 * share, start=start)


@settings(max_examples=25)
@given(layered(2, 5), st.integers(1, 2), st.sampled_from(PLACEMENTS), st.sampled_from(Objective))
def test_no_schedule_of_any_cut_is_better_than_the_joint_search(
    profile: LayeredProfile, microbatches: int, name: str, objective: Objective
) -> None:
    where = placement(name, profile.ranks)
    assume(len(where.owners) * microbatches <= 8)
    cuts = every_cut(profile, len(where.owners), Rules())
    problems = [problem_of(profile, where, cut, microbatches, objective) for cut in cuts]
    optima = [cost for cost in map(exhaustive_optimum, problems) if math.isfinite(cost)]
    found = best_partition(profile, microbatches, [where], searched, objective=objective)
    if not optima:
        assert found.best is None
        assert where.name in found.why_not
        return
    assert found.best is not None
    assert found.best.cost == pytest.approx(min(optima))
    assert found.bound <= min(optima) * (1 + 1e-9)
    assert found.best.cut in cuts
    for way in (Way.EVEN, Way.BALANCED):
        other = best_partition(
            profile, microbatches, [where], searched, way=way, objective=objective
        )
        if other.best is not None:
            assert found.best.cost <= other.best.cost * (1 + 1e-9)
            assert other.bound <= min(optima) * (1 + 1e-9)


def test_told_to_stop_it_has_a_schedule() -> None:
    calls = []

    def search(problem: Problem, name: str, share: float, start: Order | None) -> Schedule:
        calls.append(share)
        return solve(problem, solver="heuristic", work_limit=1e-3)

    found = best_partition(EXAMPLE, 4, [Placement.linear(2)], search, should_stop=lambda: True)
    assert iteration_time(found.best.schedule) >= found.bound
    assert len(calls) == 1
    assert calls[0] <= 1e-3


def test_two_searches_with_one_seed_are_one() -> None:
    def answer() -> tuple[Any, ...]:
        found = best_partition(EXAMPLE, 4, [Placement.v(2), Placement.linear(2)], hurried)
        order = [row.tolist() for row in found.best.schedule.order]
        return found.best.cut, found.best.problem, order, found.bound

    assert answer() == answer()


def test_the_bound_counts_whole_layers() -> None:
    """For 24 blocks of 27 ms, an embedding and a head, some rank has 7 blocks."""
    blocks = model(24, Profile((), 4, 0.0), head=41.0 / 3)
    layers = tuple(
        replace(one, t_f=9.0, t_b=9.0, t_w=9.0) if one.t_f == 1.0 else one for one in blocks.layers
    )
    profile = replace(blocks, layers=layers)
    found = best_partition(profile, 100, [Placement.interleaved(4, 2)], hurried)
    assert found.bound >= 100 * 7 * 27.0
