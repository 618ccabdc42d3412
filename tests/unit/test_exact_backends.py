"""What every exact backend keeps to besides being exact."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pipeloom.ir.errors import InputError
from pipeloom.ir.ops import parse_order
from pipeloom.ir.problem import Objective, Placement, Problem
from pipeloom.ir.profile import Profile, StageProfile
from pipeloom.ir.schedule import Schedule
from pipeloom.ir.simulate import timed
from pipeloom.solver.exact import BACKENDS, cp_sat
from pipeloom.solver.exact.recovery import cost_of

backends = pytest.mark.parametrize("name", BACKENDS)


def _large() -> Problem:
    """An instance that no backend finishes within the seconds that the tests give it."""
    stages = tuple(StageProfile(9.3 + 0.7 * s, 11.1 - 0.3 * s, 8.2, 1.0, 0.5) for s in range(6))
    return Problem.linear(Profile(stages, 6, 0.5), 20, 6.0)


def _one_f_one_b(problem: Problem) -> Schedule:
    """1F1B with fused BW, as families build it."""
    p, m = problem.ranks, problem.microbatches
    rows = []
    for s in range(p):
        ahead = min(p - s, m)
        row = [f"{s}F{j}" for j in range(ahead)]
        for j in range(m):
            row.append(f"{s}BW{j}")
            row += [f"{s}F{ahead + j}"] if ahead + j < m else []
        rows.append(parse_order(" ".join(row)))
    return timed(Schedule.of(problem, rows, "1f1b"))


@backends
def test_an_optimal_incumbent_is_handed_back_with_its_proof(name: str) -> None:
    problem = Problem.linear(Profile((StageProfile(1, 2, 3),), 1, 0.0), 2)
    incumbent = _one_f_one_b(problem)
    result = BACKENDS[name](problem, incumbent=incumbent, lower_bound=0.0, time_limit=20.0, seed=0)
    assert result.schedule is incumbent
    assert result.lower_bound == 12.0


@backends
def test_fused_incumbents_are_improved_on(name: str) -> None:
    problem = Problem.linear(Profile((StageProfile(1, 1, 1),) * 2, 2, 0.0), 2, 2.0)
    incumbent = _one_f_one_b(problem)
    seen: list[float] = []
    result = BACKENDS[name](
        problem,
        incumbent=incumbent,
        lower_bound=0.0,
        time_limit=20.0,
        seed=0,
        on_solution=lambda schedule: seen.append(cost_of(schedule)),
    )
    assert result.schedule is not None
    assert cost_of(incumbent) > cost_of(result.schedule) == seen[-1] == result.lower_bound
    assert seen == sorted(set(seen), reverse=True)


@backends
def test_a_known_bound_is_never_lowered(name: str) -> None:
    problem = Problem.linear(Profile((StageProfile(1, 1, 1),) * 2, 2, 0.0), 2, 2.0)
    result = BACKENDS[name](problem, incumbent=None, lower_bound=7.0, time_limit=20.0, seed=0)
    assert result.lower_bound == 7.0 == cost_of(result.schedule or _one_f_one_b(problem))


@backends
def test_the_time_limit_and_should_stop_end_the_search(name: str) -> None:
    problem = _large()
    incumbent = _one_f_one_b(problem)
    for options in ({"time_limit": 2.0}, {"time_limit": 100.0, "should_stop": lambda: True}):
        begin = time.monotonic()
        result = BACKENDS[name](problem, incumbent=incumbent, lower_bound=1.0, seed=0, **options)  # type: ignore[arg-type]
        assert time.monotonic() - begin < 30.0
        assert result.schedule is not None
        assert 1.0 <= result.lower_bound <= cost_of(result.schedule) <= cost_of(incumbent)


@backends
def test_errors_of_the_caller_end_the_search(name: str) -> None:
    """Ctrl-C is raised wherever the caller's thread is: here, where it is asked to stop."""

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BACKENDS[name](
            _large(),
            incumbent=None,
            lower_bound=0.0,
            time_limit=100.0,
            seed=0,
            should_stop=interrupt,
        )


@backends
def test_only_activations_travel(name: str) -> None:
    profile = Profile((StageProfile(1, 1, 1),) * 2, 2, 0.0)
    problem = Problem(profile, 2, Placement.round_robin(2, 2), (9.0, 9.0), Objective.PERIOD)
    with pytest.raises(InputError, match="passing is weights, expected activations"):
        BACKENDS[name](problem, incumbent=None, lower_bound=0.0, time_limit=1.0, seed=0)


@pytest.mark.parametrize(
    "code",
    [
        "import sys, pipeloom.solver.exact; assert not {'ortools', 'pulp'} & set(sys.modules)",
        "import pulp; from ortools.sat.python import cp_model",
        "from ortools.sat.python import cp_model; import pulp",
    ],
)
def test_imports(code: str) -> None:
    """Both solvers load in one process, in either order, and none before it is used."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)


@backends
def test_an_incumbent_over_the_limit_is_refused(name: str) -> None:
    problem = Problem.linear(Profile((StageProfile(1, 1, 1),) * 2, 2, 0.0), 2, 1.0)
    with pytest.raises(ValueError, match="incumbent"):
        BACKENDS[name](
            problem, incumbent=_one_f_one_b(problem), lower_bound=0.0, time_limit=1.0, seed=0
        )


def test_one_worker_is_deterministic() -> None:
    stages = (StageProfile(2, 3, 1, 1.0, 0.5), StageProfile(1, 4, 2, 1.0, 0.5))
    problem = Problem.linear(Profile(stages, 2, 0.3), 4, 2.0)
    orders = []
    for _ in range(2):
        result = cp_sat.solve(
            problem, incumbent=None, lower_bound=0.0, time_limit=60.0, seed=3, workers=1
        )
        assert result.schedule is not None
        orders.append([row.tolist() for row in result.schedule.order])
    assert orders[0] == orders[1]
