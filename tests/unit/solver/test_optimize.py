"""``optimize``: published optima, odd sizes, interrupts, progress and reports."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Status
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.core.methods import Method
from pipeloom.solver.core.progress import FALLBACK, Progress
from pipeloom.solver.core.schedule_cost import objective_cost
from pipeloom.solver.exact import BACKENDS
from pipeloom.solver.families.applicable import families_of
from pipeloom.solver.optimize import Solving, optimize
from tests.support.oracle import exhaustive_optimum

ZB_6_2B = StageProfile(29.718, 29.444, 19.927, m_b=303104.0, m_w=131072.0)


def zero_bubble(limit: float, microbatches: int = 24) -> Problem:
    """The 6.2B row of the zero bubble paper's table 5; ``limit`` in units of p M_B."""
    profile = Profile((ZB_6_2B,) * 8, 8, 0.527)
    return Problem.linear(profile, microbatches, limit * 8 * ZB_6_2B.m_b)


def bubble_rate(schedule: Schedule) -> float:
    return schedule.known_timing.bubble_rate(schedule.problem.objective)


def assert_keeps_its_limit(schedule: Schedule) -> None:
    for peak, limit in zip(
        schedule.known_timing.peak_memory, schedule.problem.memory_limit, strict=True
    ):
        assert peak <= limit * (1 + 1e-9)


def test_at_p_microbatches_of_memory_the_published_schedule_is_optimal() -> None:
    schedule = optimize(zero_bubble(1))
    assert round(bubble_rate(schedule), 4) == 0.1323  # ZB-1p
    assert schedule.known_report.status is Status.OPTIMAL
    assert_keeps_its_limit(schedule)


def test_at_twice_that_the_published_schedule_is_beaten_and_the_optimum_proven() -> None:
    schedule = optimize(zero_bubble(2))
    assert bubble_rate(schedule) < 0.0029  # ZB-2p
    assert schedule.known_report.status is Status.OPTIMAL
    assert_keeps_its_limit(schedule)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize(
    ("ranks", "microbatches", "stage", "t_comm", "limit"),
    [
        (1, 1, StageProfile(1, 2, 3, 1, 1), 0.0, 1.0),
        (1, 5, StageProfile(1, 2, 3, 1, 1), 0.0, math.inf),
        (4, 1, StageProfile(1, 2, 3, 1, 0.5), 0.5, 1.0),
        (4, 2, StageProfile(1, 1, 1, 1, 0.5), 0.1, 2.0),
        (3, 4, StageProfile(0, 0, 0, 0, 0), 0.0, 0.0),
        (3, 4, StageProfile(1, 0, 0, 0, 0), 0.0, math.inf),
        (3, 4, StageProfile(1, 1, 1, 1, 1), 1e6, 2.0),
    ],
)
def test_odd_sizes_are_solved(
    ranks: int,
    microbatches: int,
    stage: StageProfile,
    t_comm: float,
    limit: float,
    objective: Objective,
) -> None:
    profile = Profile((stage,) * ranks, ranks, t_comm)
    schedule = optimize(Problem.linear(profile, microbatches, limit, objective), time_limit=0.5)
    assert schedule.num_ops == 3 * ranks * microbatches
    assert schedule.known_report.known_bound <= schedule.known_timing.cost(objective)
    assert_keeps_its_limit(schedule)


def test_progress_only_ever_improves() -> None:
    seen: list[Progress] = []
    schedule = optimize(zero_bubble(2), progress=seen.append)
    costs = [p.incumbent for p in seen if p.incumbent is not None]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == schedule.known_timing.period
    assert seen[-1].gap == pytest.approx(0.0, abs=1e-6)
    assert [p.seconds for p in seen] == sorted(p.seconds for p in seen)


def test_an_interrupt_returns_the_best_so_far() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.method not in {FALLBACK, Method.WARM_START}:
            raise KeyboardInterrupt

    schedule = optimize(zero_bubble(0.5), progress=interrupt)
    assert schedule.known_report.family == "optimized"
    assert schedule.known_report.method == Method.ROUNDS
    assert schedule.known_report.status is Status.FEASIBLE


@pytest.mark.parametrize("solver", ["auto", *BACKENDS])
def test_exact_solvers_close_the_gap_that_bounds_leave(solver: str) -> None:
    stages = tuple(StageProfile(*times) for times in ((1, 2, 1), (1, 2, 3), (1, 2, 3)))
    problem = Problem.linear(Profile(stages, 3, 0.5), 2, 2.0)
    assert lower_bound(problem).value == 15.0
    assert exhaustive_optimum(problem) == 16.0
    schedule = optimize(problem, solver=solver, time_limit=30)
    assert schedule.known_timing.period == 16.0
    assert schedule.known_report.status is Status.OPTIMAL


def test_mixed_passing_is_refused_in_one_line() -> None:
    profile = Profile((StageProfile(1, 1, 1),) * 4, 4)
    owner = np.arange(4)[:, np.newaxis] ^ np.arange(8) % 2
    placement = Placement.of_ops(Passing.MIXED, 4, owner)
    problem = Problem(profile, 8, placement, (math.inf,) * 4)
    with pytest.raises(InputError, match=r"^passing: mixed: optimize plans schedules that pass"):
        optimize(problem)


@pytest.mark.parametrize(("limit", "at_most"), [(0.25, 0.71), (0.5, 0.48), (0.75, 0.48)])
def test_a_good_schedule_is_there_before_the_search_begins(limit: float, at_most: float) -> None:
    schedule = optimize(zero_bubble(limit), should_stop=lambda: True)
    assert bubble_rate(schedule) < at_most


def test_times_next_to_nothing_are_no_error() -> None:
    """A bound counted how many F's fit in the span, which no float holds."""
    profile = Profile((StageProfile(1e-310, 1.0, 1.0, 1.0, 0.5),) * 3, 3)
    schedule = optimize(Problem.linear(profile, 3), time_limit=5.0)
    assert schedule.known_report.status is Status.OPTIMAL


@pytest.mark.parametrize("solver", ["auto", "heuristic"])
def test_a_solve_goes_on_where_it_was_left(solver: str) -> None:
    stages = tuple(StageProfile(9.3 + 0.7 * s, 11.1 - 0.3 * s, 8.2, 1.0, 0.5) for s in range(8))
    problem = Problem(Profile(stages, 4, 0.5), 20, Placement.v(4), (6.0,) * 4)
    solving = Solving.of(problem, solver=solver)
    costs = [objective_cost(solving.begin(60.0))]
    while costs[-1] == costs[0] and len(costs) < 100:
        costs.append(objective_cost(solving.run(0.3)))
    assert costs[-1] < costs[0]
    assert objective_cost(solving.run(0.1)) <= costs[-1]


def test_of_many_ops_families_that_build_many_schedules_come_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Problem.linear(Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 2, 2), 4, 2.0)
    names = [family.name for family in families_of(problem)]
    slow = [name for name in names if name.startswith("zb-v")]
    assert slow
    assert names[-len(slow) :] != slow
    monkeypatch.setattr("pipeloom.solver.families.applicable.MANY_OPS", 0)
    quick = [name for name in names if name not in slow]
    assert [family.name for family in families_of(problem)] == quick + slow
