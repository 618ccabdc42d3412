"""Every exact backend of ``BACKENDS`` meets the oracle's optimum, and keeps its incumbent.

CBC runs as a process, which ends when it should and leaves nothing behind."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from ortools.sat.python import cp_model

from pipeloom.ir import Placement, Problem, Profile, Schedule, StageProfile, parse_order, timed
from pipeloom.solver import (
    BACKENDS,
    NEVER,
    Bound,
    Incumbent,
    Method,
    SolveOptions,
    build_family,
    objective_cost,
    one_at_a_time,
)
from pipeloom.solver.exact import cbc
from pipeloom.solver.exact.cp_sat import exact_model
from pipeloom.solver.exact.cp_sat_thread import CpSatThread
from pipeloom.solver.exact.instance import all_orders, all_positions
from pipeloom.solver.exact.model import OrderModel
from pipeloom.solver.proofs import solve_exactly
from tests.property.small_exact.instances import problem_of
from tests.support.oracle import searched
from tests.support.processes import ENVIRONMENT

# every exact backend of ``BACKENDS`` meets the oracle's optimum, and keeps its incumbent ----------


backends = pytest.mark.parametrize("name", BACKENDS)
CALLS = 3  # of should_stop, after which a solver runs


def _large() -> Problem:
    """An instance that no backend finishes within the seconds that the tests give it."""
    stages = tuple(StageProfile(9.3 + 0.7 * s, 11.1 - 0.3 * s, 8.2, 1.0, 0.5) for s in range(6))
    return Problem.linear(Profile(stages, 6, 0.5), 12, 6.0)


def _one_f_one_b(problem: Problem) -> Schedule:
    """1F1B with fused BW."""
    built = build_family("1f1b", problem.profile, problem.microbatches, memory_limit=math.inf)
    return timed(replace(built, problem=problem))


def solved(
    name: str,
    problem: Problem,
    incumbent: Schedule | None = None,
    lower_bound: float = 0.0,
    seed: int = 0,
    **options: Any,
) -> Incumbent:
    """The incumbent after one run of an exact solver, which begins with a poor schedule if none."""
    chosen = SolveOptions(**{"time_limit": 20.0} | options)
    best = Incumbent(problem, Bound(lower_bound, "known", ""), chosen)
    start = Schedule(problem, one_at_a_time(problem)) if incumbent is None else incumbent
    best.offer(start.order, Method.START)
    solve_exactly(best, name, seed)
    return best


KINDS = ("linear", "v", "several stages a rank")


@pytest.mark.parametrize("kind", KINDS)
@backends
def test_the_optimum_is_found_and_proven(name: str, kind: str) -> None:
    """From a poor schedule."""
    decided = 0
    for seed in range(10):
        problem = problem_of(kind, seed)
        optimum, complete = searched(problem, nodes=10_000)
        if not complete or problem.microbatches * problem.stages > 9 or math.isinf(optimum):
            continue
        decided += 1
        best = solved(name, problem, time_limit=60.0, seed=1)
        assert best.bound.value == pytest.approx(optimum, rel=1e-6)
        assert best.bound.value <= optimum * (1 + 1e-9)
        assert best.cost == pytest.approx(optimum, rel=1e-6)
    assert decided > 3


@pytest.mark.parametrize("kind", [*KINDS, "two copies", "unlike"])
def test_relaxations_have_a_solution_of_the_optimal_cost(kind: str) -> None:
    """All orders, those of each rank, and those of some microbatches."""
    decided = 0
    for seed in range(20):
        problem = problem_of(kind, seed)
        optimum, complete = searched(problem, nodes=10_000)
        if not complete or math.isinf(optimum):
            continue
        decided += 1
        every = [[j] for j in range(problem.microbatches)] if kind == "unlike" else None
        relaxations = [all_orders(problem, streams=streams) for streams in (every, [[0]])]
        if kind in KINDS:
            hosts = sorted(set(problem.placement.owners))
            relaxations += [all_orders(problem, ranks=[rank]) for rank in hosts]
        for relaxation in relaxations:
            model = OrderModel(relaxation, 0.0, optimum)
            with CpSatThread(model.cp, model.order, num_workers=1) as search:
                while search.next(NEVER) is not None:
                    pass
            assert search.status == cp_model.OPTIMAL, (kind, seed)
    assert decided > 5


@backends
def test_an_optimal_incumbent_is_handed_back_with_its_proof(name: str) -> None:
    problem = Problem.linear(Profile((StageProfile(1, 2, 3),), 1, 0.0), 2)
    incumbent = _one_f_one_b(problem)
    best = solved(name, problem, incumbent)
    assert (best.method, best.cost, best.bound.value) == (Method.START, 12.0, 12.0)


@backends
def test_fused_incumbents_are_improved_on(name: str) -> None:
    problem = Problem.linear(Profile((StageProfile(1, 1, 1),) * 2, 2, 0.0), 2, 2.0)
    incumbent = _one_f_one_b(problem)
    best = solved(name, problem, incumbent)
    assert best.method == name
    assert objective_cost(incumbent) > best.cost == best.bound.value


@backends
def test_a_known_bound_is_never_lowered(name: str) -> None:
    problem = Problem.linear(Profile((StageProfile(1, 1, 1),) * 2, 2, 0.0), 2, 2.0)
    best = solved(name, problem, lower_bound=7.0)
    assert best.bound.value == 7.0 == best.cost


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[subprocess.Popen[bytes]]:
    """The processes that are started, with temporary files in ``tmp_path``."""
    started = []

    def popen(*args: object, **options: object) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = real(*args, **options)  # type: ignore[call-overload]
        started.append(process)
        return process

    real = subprocess.Popen
    monkeypatch.setattr(cbc.subprocess, "Popen", popen)
    monkeypatch.setattr(cbc.tempfile, "tempdir", str(tmp_path))
    return started


@backends
def test_the_time_limit_and_should_stop_end_the_search(
    name: str, processes: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """And the process of a backend, if it has one, with what it wrote."""
    problem = _large()
    incumbent = _one_f_one_b(problem)
    calls = count()
    stopped = {"time_limit": 1000.0, "should_stop": lambda: next(calls) > CALLS}
    for options in ({"time_limit": 0.5}, stopped):
        best = solved(name, problem, incumbent, 1.0, **options)  # within the test's own limit
        assert 1.0 <= best.bound.value <= best.cost <= objective_cost(incumbent)
        assert all(each.returncode is not None for each in processes)
        assert not list(tmp_path.iterdir())
    assert bool(processes) == (name == "milp")


@backends
def test_errors_of_the_caller_end_the_search(name: str) -> None:
    """Ctrl-C is raised wherever the caller's thread is: here, where it is asked to stop."""
    calls = count()

    def interrupt() -> bool:
        if next(calls) > CALLS:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        solved(name, _large(), time_limit=100.0, should_stop=interrupt)


@pytest.mark.parametrize(
    "code",
    [
        "import sys, pipeloom.solver.exact; assert not {'ortools', 'pulp'} & set(sys.modules); "
        "import pulp; from ortools.sat.python import cp_model",
        "from ortools.sat.python import cp_model; import pulp",
    ],
)
def test_imports(code: str) -> None:
    """Both solvers load in one process, in either order, and none before it is used."""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=ENVIRONMENT)


def test_presolving_proves_no_bound_above_a_schedule() -> None:
    """CP-SAT 9.15 did, in its search for clauses that others include: 653.882.

    The order is for P = 4, M = 8 in a V with room for 10 chunks; it holds nine.
    """
    order = Path(__file__).with_name("nine_chunks.txt").read_text(encoding="utf-8").splitlines()
    stage = StageProfile(14.407, 14.38, 9.676, 1.0, 65536 / 151552)
    problem = Problem(Profile((stage,) * 8, 4, 1.61), 8, Placement.v(4), (10.0,) * 4)
    known = timed(Schedule.of(problem, map(parse_order, order), "known"))
    assert known.known_timing.period == pytest.approx(638.896)
    incumbent = build_family("zb-v", problem.profile, 8, memory_limit=10.0)
    model = exact_model(all_positions(problem), incumbent, 0.0)
    with CpSatThread(
        model.cp,
        lambda _: 0.0,
        num_workers=1,
        cp_model_probing_level=0,
        max_deterministic_time=0.2,
    ) as search:
        while search.next(NEVER) is not None:
            pass
    assert search.bound is not None
    assert search.bound / model.ticks.per_unit <= known.known_timing.period
