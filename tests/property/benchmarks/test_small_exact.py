"""A sample of ``python -m benchmarks.small_exact``, and that its checks can fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import small_exact
from benchmarks.small_exact import solved
from benchmarks.small_exact.instances import CELLS, KINDS, problem_of
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.optimize import optimize

SEEDS = range(10)


@pytest.fixture(autouse=True)
def few_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_exact, "NODES", 100_000)


@pytest.mark.parametrize("kind", KINDS)
def test_the_optimum_is_found_and_proven(kind: str) -> None:
    found = [one for seed in SEEDS if (one := solved(kind, seed, 120.0)) is not None]
    assert [one.wrong for one in found if one.wrong] == []
    assert all(one.proven for one in found)
    assert any(one.optimum is not None for one in found)


@pytest.mark.parametrize("kind", KINDS)
def test_its_files_pass_the_verifier(kind: str) -> None:
    for seed in range(100, 106):
        problem = problem_of(kind, seed)
        assert problem.stages * problem.microbatches <= CELLS
        try:
            schedule = optimize(problem, time_limit=120.0)
        except InfeasibleError:
            continue
        assert verify_schedule(dump_schedule(schedule)) == []


def test_a_cost_above_the_optimum_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(problem: Problem, **_: object) -> Schedule:
        found = optimize(problem, solver="heuristic", time_limit=0.0)
        return replace(found, report=replace(found.known_report, lower_bound=0.0))

    monkeypatch.setattr(small_exact, "optimize", slower)
    found = [solved("two copies", seed, 1.0) for seed in range(30)]
    assert any(one is not None and one.wrong for one in found)


def test_a_bound_above_the_optimum_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def proud(problem: Problem, **_: object) -> Schedule:
        found = optimize(problem, time_limit=120.0)
        report = replace(found.known_report, lower_bound=1.001 * found.known_report.known_bound)
        return replace(found, report=report)

    monkeypatch.setattr(small_exact, "optimize", proud)
    one = solved("v", 3, 1.0)
    assert one is not None
    assert one.wrong is not None
    assert "bound" in one.wrong
