"""With limited work a seed gives the same answer, whatever else the machine does."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Status
from pipeloom.solver.optimize import optimize

TINY = tuple(StageProfile(*times) for times in ((1, 2, 1, 1), (1, 2, 3, 1), (1, 2, 3, 1)))
UNEVEN = tuple(StageProfile(9.3 + 0.7 * s, 11.1 - 0.3 * s, 8.2, 1.0, 0.5) for s in range(5))

MATRIX = tuple(tuple(0.7 * abs(a - 2 * b) for a in range(5)) for b in range(5))


def answer(problem: Problem, solver: str, seed: int, work_limit: float) -> str:
    """The schedule's file, but for the seconds that it took."""
    schedule = optimize(problem, solver=solver, seed=seed, work_limit=work_limit)
    document: dict[str, Any] = dump_schedule(schedule)
    assert document["report"].pop("solve_seconds") > 0
    return json.dumps(document)


@pytest.mark.parametrize(
    ("problem", "solver", "work_limit"),
    [
        (Problem.linear(Profile(TINY, 3, 0.5), 3, 2.0), "auto", 50),
        (Problem.linear(Profile(UNEVEN, 5, 0.5), 8, 3.0), "auto", 60),
        (Problem.linear(Profile(UNEVEN, 5, 0.5), 8, 3.0), "cp-sat", 20),
        (Problem.linear(Profile(UNEVEN[:3], 3, 0.5), 5, 2.0), "milp", 5),
        (Problem.linear(Profile(UNEVEN, 5, 0.5), 40, 4.0), "auto", 60),
        (Problem.linear(Profile(UNEVEN, 5, 0.5), 40, 4.0), "heuristic", 60),
        (Problem.linear(Profile(UNEVEN, 5, MATRIX), 9, 4.0, Objective.MAKESPAN), "auto", 60),
        (
            Problem(Profile(UNEVEN[:4], 2, 0.5), 6, Placement.of_stages((0, 1, 0, 1)), (9.0,) * 2),
            "auto",
            60,
        ),
    ],
)
def test_the_same_seed_gives_the_same_file(
    problem: Problem, solver: str, work_limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = answer(problem, solver, 3, work_limit)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    assert answer(problem, solver, 3, work_limit) == once


def test_more_work_is_never_worse_and_enough_of_it_proves_the_optimum() -> None:
    problem = Problem.linear(Profile(UNEVEN[:4], 4, 0.5), 5, 2.0)
    little, enough = (optimize(problem, work_limit=work) for work in (1, 1000))
    assert enough.known_timing.cost(problem.objective) <= little.known_timing.cost(
        problem.objective
    )
    assert enough.known_report.status is Status.OPTIMAL
