"""The optimizer where weights travel: its orders, its best schedules, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom.ir.cost.memory_footprint import footprint
from pipeloom.ir.cost.steady_state.send_points import step_between_ops
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Link, Links, Profile, Sharing, StageProfile
from pipeloom.ir.model.schedule import Schedule, Status, TransferKind
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.core.progress import Progress
from pipeloom.solver.optimize import optimize


def make(
    ranks: int,
    microbatches: int,
    objective: Objective = Objective.PERIOD,
    *,
    stages: int = 0,
    limit: float | None = None,
    t_comm: float = 0.0,
    links: Links | None = None,
    device_memory: float | None = None,
) -> Problem:
    stage = StageProfile(1.0, 1.0, 1.0, weight_bytes=1.0, grad_bytes=1.0)
    held = None if device_memory is None else (device_memory,) * ranks
    profile = Profile((stage,) * (stages or ranks), ranks, t_comm, links, device_memory=held)
    placement = Placement.round_robin(ranks)
    return Problem(profile, microbatches, placement, profile.limit_from(limit), objective)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("ranks", [4, 8, 16])
@pytest.mark.parametrize("share", [2, 4])
def test_without_delay_there_is_no_bubble(ranks: int, share: int, objective: Objective) -> None:
    schedule = optimize(make(ranks, share * ranks, objective), work_limit=1.0)
    assert schedule.known_timing.bubble_rate(objective) == pytest.approx(0.0, abs=1e-9)
    assert schedule.known_report.status is Status.OPTIMAL


RING = Links(Link(0.0, 2e-6), shared=Sharing.RING)  # a stage takes 0.5 from neighbour to neighbour


def report(schedule: Schedule) -> tuple[float, float]:
    """The cost and its bound."""
    return schedule.known_timing.cost(schedule.problem.objective), schedule.known_report.known_bound


@pytest.mark.parametrize(
    ("objective", "links", "most"),
    [
        (Objective.PERIOD, None, 192.0),
        (Objective.MAKESPAN, None, 192.5),  # everyone but the owner waits for a hop
        (Objective.PERIOD, RING, 192.0),
        (Objective.MAKESPAN, RING, 196.0),
    ],
)
def test_a_hop_of_half_an_f_costs_its_first_way_alone(
    objective: Objective, links: Links | None, most: float
) -> None:
    """The published order's bubble is .190 without a delay and .300 with this one."""
    problem = make(16, 64, objective, t_comm=0.5, links=links)
    cost, bound = report(optimize(problem, work_limit=10.0))
    assert cost <= most
    assert bound >= 0.99 * cost


def test_a_memory_limit_leaves_more_rounds() -> None:
    free, tight = (optimize(make(4, 16, limit=x), work_limit=5.0) for x in (None, 4.0))
    assert max(tight.known_timing.peak_memory) <= 4.0
    assert report(tight) == report(free) == (48.0, 48.0)


def test_less_than_one_microbatch_is_infeasible() -> None:
    with pytest.raises(InfeasibleError, match="smallest feasible limit is 4"):
        optimize(make(4, 8, limit=3.5))


def held(schedule: Schedule) -> list[float]:
    """A stand-in for what devices hold: less with every fetch more."""
    weights = [t.target for t in schedule.transfers if t.kind is TransferKind.WEIGHT]
    return [20.0 - weights.count(rank) for rank in range(2)]


def test_what_the_devices_hold_is_kept() -> None:
    assert held(optimize(make(2, 8, stages=4), work_limit=1.0, memory=held)) == [18.0, 18.0]
    tight = make(2, 8, stages=4, device_memory=12.0)
    assert max(held(optimize(tight, work_limit=1.0, memory=held))) <= 12.0
    with pytest.raises(
        InfeasibleError, match=r"device_memory 1 is too small for rank \d: .* holds"
    ):
        optimize(make(2, 8, stages=4, device_memory=1.0), work_limit=1.0, memory=held)


def test_smaller_devices_cost_no_time_as_long_as_transfers_hide() -> None:
    """Fewer buffers, other routes and more rounds until the leanest; what is held is the
    program's."""

    def held(schedule: Schedule) -> tuple[float, ...]:
        return footprint(schedule).total

    stage = StageProfile(1.0, 1.0, 1.0, weight_bytes=100.0, grad_bytes=100.0, optimizer_bytes=200.0)
    most = []
    for device in (3000.0, 2000.0, 1700.0):
        profile = Profile((stage,) * 8, 4, 0.5, device_memory=(device,) * 4)
        problem = Problem(profile, 12, Placement.round_robin(4), profile.limit_from(None))
        schedule = optimize(problem, work_limit=8.0, memory=held)
        assert report(schedule) == (72.0, 72.0)
        most.append(max(held(schedule)))
        assert most[-1] <= device
    assert most[0] > 2000.0 > most[1] >= most[2]


def test_by_step_the_next_iteration_counts() -> None:
    """Over one port each way, 8 a stage: what the period saves comes back as D's on their way
    home."""
    links = Links(Link(0.0, 1e-6 / 8), shared=Sharing.PORTS)
    problem = make(6, 12, links=links)
    by_period, by_step = (optimize(problem, work_limit=8.0, by_step=x) for x in (False, True))
    assert report(by_period)[0] < report(by_step)[0]
    assert step_between_ops(by_step) < 0.98 * step_between_ops(by_period)


@pytest.mark.parametrize("objective", Objective)
def test_by_step_progress_is_of_steps_and_the_report_of_the_objective(objective: Objective) -> None:
    problem, told = make(4, 12, objective, links=RING), list[Progress]()
    schedule = optimize(problem, work_limit=8.0, by_step=True, progress=told.append)
    incumbents = [each.incumbent for each in told if each.incumbent is not None]
    assert incumbents == sorted(incumbents, reverse=True)
    assert incumbents[-1] == pytest.approx(step_between_ops(schedule))
    assert {each.bound for each in told} == {36.0}  # three microbatches of four stages of 3
    cost, bound = report(schedule)
    assert bound == lower_bound(problem).value
    assert (schedule.known_report.status is Status.OPTIMAL) == (cost - bound <= 1e-6 * cost)


def test_the_same_seed_gives_the_same_schedule() -> None:
    problem = replace(make(4, 13, Objective.MAKESPAN, stages=5, limit=15.0), microbatches=13)
    problem = replace(problem, profile=replace(problem.profile, links=RING))
    first, second = (optimize(problem, work_limit=8.0, seed=7) for _ in range(2))
    assert first.transfers == second.transfers
    assert report(first) == report(second)


def test_told_to_stop_it_returns_what_it_has() -> None:
    schedule = optimize(make(8, 16, Objective.MAKESPAN, links=RING), should_stop=lambda: True)
    assert schedule.timing is not None
