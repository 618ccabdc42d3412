"""The choice of the placement: which are tried or skipped, and the memory that weights leave for
activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pipeloom.ir import (
    Placement,
    PlacementKind,
    Problem,
    Profile,
    StageProfile,
    dump_schedule,
    verify_schedule,
)
from pipeloom.solver import (
    NEVER,
    Solving,
    StoppingCriterion,
    SuccessiveHalving,
    TriedPlacement,
    best_placement,
    bounded_placements,
    iteration_time,
    lower_bound,
    placements,
    room,
    solve,
)

STAGE = StageProfile(2.0, 2.0, 1.0, 1.0, 0.5, weight_bytes=2.0, grad_bytes=1.0)
PROFILE = Profile((STAGE,) * 2, 2, 0.1)


WORK = 1.0


def search(problem: Problem, _: str = "") -> Solving:
    return Solving.of(problem, solver="heuristic", work_limit=WORK)


def chosen_for(
    profile: Profile,
    microbatches: int,
    start: Callable[[Problem, str], Solving] = search,
    should_stop: StoppingCriterion = NEVER,
    **given: Any,
) -> SuccessiveHalving:
    entries = bounded_placements(profile, microbatches, **given)
    return best_placement(entries, start, should_stop=should_stop)


def test_a_profile_of_one_stage_a_rank_is_cut() -> None:
    names = {placement.name: placed.num_stages for placed, placement in placements(PROFILE)}
    assert names == {
        "linear": 2, "interleaved:2": 4, "v": 4, "interleaved:3": 6, "interleaved:4": 8, "wave:2": 8,  # noqa: E501
    }  # fmt: skip


def test_a_profile_is_cut_no_further_than_its_source() -> None:
    names = [placement.name for _, placement in placements(replace(PROFILE, max_stages=7))]
    assert names == ["linear", "interleaved:2", "v", "interleaved:3"]
    assert [p.name for _, p in placements(replace(PROFILE, max_stages=2))] == ["linear"]


def test_stages_of_unlike_work_are_shared_out_evenly() -> None:
    """With 9 + 1, 5 + 4 and 5 + 4 on the ranks; interleaved, they have 14, 5 and 9."""
    work = (9.0, 1.0, 5.0, 5.0, 4.0, 4.0)
    profile = Profile(tuple(StageProfile(w / 2, w / 4, w / 4, 0.1, 0.1) for w in work), 3)
    chosen = chosen_for(profile, 7)
    assert chosen.best.problem.placement.owners == (0, 0, 1, 2, 1, 2)
    assert entry(chosen, "custom").bound == pytest.approx(7 * 10.0)
    assert chosen.tried[0].note == "stages on ranks 0,0,1,2,1,2"


def balanced(profile: Profile, **given: Any) -> tuple[int, ...]:
    """The rank of each stage in the placement that shares out the work."""
    entries = bounded_placements(profile, 1, kinds=[PlacementKind.CUSTOM], **given)
    (problem,) = [entry.problem for entry in entries if entry.name == "custom"]
    assert problem is not None
    return problem.placement.owners


def test_work_is_shared_out_by_what_ranks_can_do_and_hold() -> None:
    """Of seven equal stages, a rank that takes twice as long gets one. Without a slow rank, the
    first stages, which hold most, are on the rank with the largest limit."""
    profile = Profile((STAGE,) * 7, 3, memory_limit=(9.0,) * 3)
    assert balanced(profile, slow={1: 2.0}).count(1) == 1
    owners = balanced(replace(profile, memory_limit=(4.0, 3.0, 5.0)))
    assert (owners[0], sorted(map(owners.count, range(3)))) == (2, [2, 2, 3])
    # longest-first alone puts 16 on one rank
    uneven = tuple(StageProfile(work, 0.0, 0.0) for work in (7.0, 7.0, 6.0, 6.0, 5.0, 5.0, 4.0))
    work = [stage.t_f for stage in uneven]
    shared = balanced(Profile(uneven, 3))
    assert max(sum(w for w, o in zip(work, shared, strict=True) if o == r) for r in range(3)) == 14


def test_the_best_of_all_is_no_worse_than_each_of_them() -> None:
    chosen = chosen_for(PROFILE, 4, memory_limit=2.0, copies=2)
    assert chosen.best is not None
    best = iteration_time(chosen.best)
    assert chosen.bound is not None
    assert chosen.bound <= best
    for placed, placement in placements(PROFILE):
        problem = Problem(placed, 4, placement, (2.0, 2.0))
        alone = solve(problem, solver="heuristic", work_limit=WORK)
        assert best <= iteration_time(alone) * (1 + 1e-6)
        assert chosen.bound <= max(lower_bound(problem).value, best)
    for tried in chosen.tried:
        assert tried.bound is not None
        if tried.schedule is None:  # skipped, as it cannot be better
            assert tried.bound >= best * (1 - 1e-6)


def test_activations_have_what_weights_leave_on_the_device() -> None:
    small = replace(PROFILE, device_memory=(5.0, 4.0))
    limit = room(small, Placement.linear(2), (1.5, math.inf))
    assert limit == (1.5, 1.0)
    chosen = chosen_for(replace(PROFILE, device_memory=(3.5, 3.5)), 4, copies=2)
    assert chosen.best is None
    assert chosen.bound is None
    assert all("too small for rank" in (tried.why_not or "") for tried in chosen.tried)


def test_after_an_interrupt_all_that_may_win_get_their_first_schedules() -> None:
    """The one with the least bound is first; its schedule may run one microbatch at a time."""

    def hasty(problem: Problem, _: str) -> Solving:
        return Solving.of(problem, solver="heuristic", work_limit=WORK, should_stop=lambda: True)

    chosen = chosen_for(PROFILE, 4, hasty, memory_limit=2.0, should_stop=lambda: True)
    assert chosen.best is not None
    cost = iteration_time(chosen.best)
    left_out = [tried for tried in chosen.tried if tried.schedule is None]
    assert len(left_out) < len(chosen.tried) - 1
    assert all(tried.bound is None or tried.bound >= cost * (1 - 1e-6) for tried in left_out)


TWO_WAYS = Profile((STAGE,) * 2, 2, 0.1, device_memory=(8.5, 8.5))


def entry(chosen: SuccessiveHalving, name: str) -> TriedPlacement:
    (found,) = [tried for tried in chosen.tried if tried.name == name]
    return found


def test_two_copies_of_the_weights_leave_less_for_activations() -> None:
    """Both ranks have both stages, with 3 each; 2.5 of 8.5 are left."""
    found = entry(chosen_for(TWO_WAYS, 4, copies=2), "bidirectional")
    assert found.schedule.problem.memory_limit == (2.5, 2.5)
    assert max(found.schedule.known_timing.peak_memory) <= 2.5
    assert verify_schedule(dump_schedule(found.schedule)) == []
    assert "two copies of the weights (unknown optimizer_bytes counted as 0)" in found.note
    too_small = replace(TWO_WAYS, device_memory=(6.5, 6.5))
    found = entry(chosen_for(too_small, 4, copies=2), "bidirectional")
    assert "too small for rank" in (found.why_not or "")


HEAVY = replace(STAGE, m_b=2.0, m_w=0.0, weight_bytes=1.0, grad_bytes=1.0, optimizer_bytes=2.0)


def test_a_device_that_is_too_small_is_named_with_what_it_has_to_hold() -> None:
    profile = replace(Profile((HEAVY,) * 2, 2, 0.0), device_memory=(5.0, 5.0))
    assert entry(chosen_for(profile, 4), "linear").why_not == (
        "device_memory 5 is too small for rank 0: weights, gradients and optimizer state hold 4 "
        "there, one microbatch 2"
    )
    roomy = replace(profile, device_memory=(50.0, 50.0))
    why = entry(chosen_for(roomy, 4, memory_limit=1.0), "linear").why_not
    assert why is not None
    assert why.startswith("memory limit 1 is too small for rank 0")
