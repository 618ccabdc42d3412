"""``optimize``: small and published optima, odd sizes, interrupts, progress, limits, workers."""

from __future__ import annotations

import json
import math
import os
import threading
from time import monotonic
from typing import Any

import numba
import numpy as np
import pytest

from pipeloom.ir import (
    Objective,
    OpKind,
    Placement,
    Problem,
    Profile,
    StageProfile,
    Status,
    dump_schedule,
    seconds_compiling,
    verify_schedule,
)
from pipeloom.solver import Method, Progress, Solving, TimeLimit, lower_bound, objective_cost, solve
from tests.property.small_exact.instances import KINDS, placed, problem_of
from tests.support.large_problems import large_problem
from tests.support.oracle import searched
from tests.support.processes import until
from tests.support.table5 import ROWS

# ``optimize`` on random small problems: valid, within the limit, optimal with enough work
# -----------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "weights"])
def test_small_problems_of_every_kind_are_solved_to_the_optimum(kind: str) -> None:
    decided = 0
    for problem in (problem_of(kind, seed) for seed in range(5)):
        least, complete = searched(problem, nodes=10_000)
        if not complete or math.isinf(least):
            continue
        decided += 1
        schedule = solve(problem, work_limit=4)
        assert verify_schedule(dump_schedule(schedule)) == []
        assert objective_cost(schedule) == pytest.approx(least, rel=1e-6)
        assert schedule.known_report.known_bound <= least * (1 + 1e-9)
    assert decided


UNEQUAL_RANK = (
    StageProfile(4.0, 0.0, 0.0, 1.0, 0.8963717070571565),
    StageProfile(2.0, 2.0, 4.0, 1.0, 0.0010422488710475353),
    StageProfile(4.0, 0.0, 0.0, 1.0, 0.6307896659086383),
    StageProfile(0.0, 0.0, 3.0, 1.0, 0.28182757224821897),
)
CHUNK = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)
HASTY = StageProfile(0.0, 0.0, 1.0, 1.0, 0.2)
LINEAR = StageProfile(1, 1, 0.6, 1, 0.5)
NO_DECIMALS = tuple(
    StageProfile(*each, 1.0, 0.4)
    for each in np.random.default_rng(0).uniform(0.5, 1.5, (4, 3)).tolist()
)


@pytest.mark.parametrize(
    ("problem", "least"),
    [
        # the best period requires a rank's first op to start later than its input arrives
        (placed(UNEQUAL_RANK, 3, Placement.interleaved(2, 2), 4.2260567181501), 33.0),
        (Problem.linear(Profile((LINEAR,) * 4, 4, 0.0), 9, 3.0), 32.2),
        (Problem.linear(Profile(NO_DECIMALS, 4, 0.123456789), 6, 2.0), 33.17946347),
        # windows of ops that take no time must not be refuted
        (placed((HASTY,) * 4, 6, Placement.v(2), 6.9), 12.0),
        # only one microbatch at a time passes both stages of a rank
        *((placed((CHUNK,) * 4, 3, Placement.v(2), 2.0, each), 25.0) for each in Objective),
    ],
)
def test_models_of_all_orders_find_and_prove_the_optimum(problem: Problem, least: float) -> None:
    found = solve(problem, work_limit=30)
    assert verify_schedule(dump_schedule(found)) == []
    assert objective_cost(found) == pytest.approx(least)
    assert found.known_report.known_bound <= least * (1 + 1e-6)
    assert found.known_report.status is Status.OPTIMAL


@pytest.mark.slow
def test_models_of_orders_bound_large_problems_far_above_the_closed_forms() -> None:
    """The best known schedule costs 1250.6."""
    problem = large_problem("v", 0)
    report = solve(problem, work_limit=60).known_report
    assert lower_bound(problem).value < 900.0 < 1100.0 < report.known_bound < 1250.6
    assert report.bound in {"interleaving", "rank-orders"}


# ``optimize``: published optima, odd sizes, interrupts, progress and reports ----------------------


ZERO_BUBBLE = ROWS["6.2B-24"]


def test_progress_only_ever_improves() -> None:
    seen: list[Progress] = []
    schedule = solve(ZERO_BUBBLE.problem(2), progress=seen.append)
    costs = [p.incumbent for p in seen if p.incumbent is not None]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == schedule.known_timing.period
    assert seen[-1].gap == pytest.approx(0.0, abs=1e-6)
    assert [p.seconds for p in seen] == sorted(p.seconds for p in seen)


def test_an_interrupt_returns_the_best_so_far() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.method not in {Method.ONE_AT_A_TIME, Method.WARM_START}:
            raise KeyboardInterrupt

    schedule = solve(ZERO_BUBBLE.problem(0.5), progress=interrupt)
    assert schedule.known_report.family == "optimized"
    assert schedule.known_report.method in {Method.ROUNDS, Method.LIST}
    assert schedule.known_report.status is Status.FEASIBLE


@pytest.mark.parametrize(("limit", "at_most"), [(0.25, 0.71), (0.5, 0.48), (0.75, 0.48)])
def test_a_good_schedule_is_there_before_the_search_begins(limit: float, at_most: float) -> None:
    schedule = solve(ZERO_BUBBLE.problem(limit), should_stop=lambda: True)
    assert schedule.known_timing.bubble_rate(Objective.PERIOD) < at_most


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


# with a work limit, a seed gives the same answer on any machine
# -------------------------------------


UNEVEN = tuple(StageProfile(9.3 + 0.7 * s, 11.1 - 0.3 * s, 8.2, 1.0, 0.5) for s in range(5))

MATRIX = tuple(tuple(0.7 * abs(a - 2 * b) for a in range(5)) for b in range(5))


def answer(problem: Problem, solver: str, seed: int, work_limit: float) -> str:
    """The schedule's file, without solve times."""
    schedule = solve(problem, solver=solver, seed=seed, work_limit=work_limit)
    document: dict[str, Any] = dump_schedule(schedule)
    assert document["report"].pop("solve_seconds") > 0
    return json.dumps(document)


@pytest.mark.parametrize(
    ("problem", "solver", "work_limit"),
    [
        (Problem.linear(Profile(UNEVEN, 5, 0.5), 8, 3.0), "auto", 30),
        (Problem.linear(Profile(UNEVEN, 5, 0.5), 8, 3.0), "cp-sat", 10),
        (Problem.linear(Profile(UNEVEN[:3], 3, 0.5), 5, 2.0), "milp", 5),
        (Problem.linear(Profile(UNEVEN, 5, 0.5), 20, 4.0), "auto", 30),
        (Problem.linear(Profile(UNEVEN, 5, MATRIX), 9, 4.0, Objective.MAKESPAN), "auto", 30),
        (
            Problem(Profile(UNEVEN[:4], 2, 0.5), 6, Placement.of_stages((0, 1, 0, 1)), (9.0,) * 2),
            "auto",
            30,
        ),
    ],
)
def test_the_same_seed_gives_the_same_file(
    problem: Problem, solver: str, work_limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = answer(problem, solver, 3, work_limit)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    assert answer(problem, solver, 3, work_limit) == once


# B and W as one op that takes less: decided separately for each microbatch
# --------------------------


def test_microbatches_of_one_stage_differ() -> None:
    """In the busier rank's steady state, fusing saves time; but its last gradients are waited
    for."""
    first = StageProfile(3.0, 3.0, 2.0, 10.0, 4.0, t_bw=4.5)
    last = StageProfile(4.0, 6.0, 4.0, 10.0, 4.0, t_bw=8.0)
    problem = Problem.linear(Profile((first, last), 2, t_comm=0.5), 4, 20.0)
    found = solve(problem, work_limit=2.0)
    kinds = {op.kind for op in found.ops(1)}
    assert kinds == {OpKind.F, OpKind.B, OpKind.W, OpKind.BW}


# worker threads that share an incumbent: events, and their end
# --------------------------------------


SIX_UNEQUAL = tuple(StageProfile(9.3 + 0.7 * s, 11.1 - 0.3 * s, 8.2, 1.0, 0.5) for s in range(6))
LONG = Problem.linear(Profile(SIX_UNEQUAL, 6, 0.5), 20, 3.0)


def workers() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("worker")]


def test_an_error_of_a_listener_ends_the_workers_and_is_raised() -> None:
    callers = set()

    def listen(progress: Progress) -> None:
        callers.add(threading.get_ident())
        if workers():
            raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        solve(LONG, progress=listen, time_limit=60.0)
    until(lambda: not workers(), 30.0)
    assert callers == {threading.get_ident()}


# a time limit does not include the compilation of kernels
# -------------------------------------------


def test_compiling_takes_nothing_of_a_time_limit() -> None:
    def looped(n: int) -> int:
        total = 0
        for i in range(n):
            total += i * n
        return total

    began, limit, before = monotonic(), TimeLimit(60.0), seconds_compiling()
    assert numba.njit(looped)(3) == 9
    compiled, left = seconds_compiling() - before, limit.left
    assert compiled > 0.0
    assert left >= 60.0 - (monotonic() - began) + compiled
    assert left <= 60.0
    assert seconds_compiling() == before + compiled
