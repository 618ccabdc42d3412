"""``optimize --slow``: ranks that take longer, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipeloom import Profile, StageProfile, optimize

PROFILE = Profile((StageProfile(2.0, 3.0, 1.5),) * 4, 4, t_comm=0.1)


def test_a_slow_rank_is_planned_as_its_stages_with_longer_times() -> None:
    asked: dict[str, Any] = {"work_limit": 5, "objective": "makespan", "placement": "linear"}
    slow = optimize(PROFILE, 6, slow={1: 1.5}, **asked)
    stages = list(PROFILE.stages)
    stages[1] = replace(stages[1], t_f=3.0, t_b=4.5, t_w=2.25)
    other = optimize(replace(PROFILE, stages=tuple(stages)), 6, **asked)
    assert slow.schedule.problem.profile.stages == tuple(stages)
    assert slow.schedule.problem.profile.name == "rank 1 takes 1.5x as long"
    assert slow.document["order"] == other.document["order"]


def test_the_placement_is_chosen_for_the_slow_rank() -> None:
    """Each placement has other stages on it; of the chosen one the order is as by itself."""
    asked: dict[str, Any] = {"work_limit": 0.5, "solver": "heuristic", "objective": "makespan"}
    slow = optimize(PROFILE, 6, slow={1: 1.5}, **asked)
    problem = slow.schedule.problem
    assert {one.name for one in slow.candidates} >= {"linear", "v", "interleaved:2", "wave:2"}
    pieces = problem.profile.num_stages // 4
    assert pieces > 1
    for stage, found in enumerate(problem.profile.stages):
        times = 1.5 if problem.placement.owners[stage] == 1 else 1.0
        assert (found.t_f, found.t_b) == (2.0 * times / pieces, 3.0 * times / pieces)
    alone = optimize(problem.profile, 6, placement=problem.placement.name, **asked)
    assert slow.cost <= alone.cost * (1 + 1e-9)
    again = optimize(PROFILE, 6, slow={1: 1.5}, placement=problem.placement.name, **asked)
    assert slow.document["order"] == again.document["order"] == alone.document["order"]
