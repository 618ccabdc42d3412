"""A slice of ``python -m tests.property.random_instances``, and that its checks can fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeloom.ir import Problem, Schedule, timed
from pipeloom.solver import solve
from tests.property.random_instances import checked, checks, summary
from tests.property.random_instances.checks import check
from tests.property.random_instances.instances import Instance, random_instance

SLICE, PARTS, WORK = 300, 10, 2.0
ORDINARY = 1  # parts; the others are slow
TINY = 4
"""The seed of an instance that the oracle searches, and that has a schedule."""


@pytest.mark.parametrize(
    "part",
    [pytest.param(n, marks=[pytest.mark.slow] if n >= ORDINARY else []) for n in range(PARTS)],
)
def test_whatever_the_instance_all_holds(part: int) -> None:
    found = [checked(seed, WORK) for seed in range(part, SLICE, PARTS)]
    assert summary(found)["faults"] == []


def faults(instance: Instance) -> list[str]:
    return check(instance, WORK).faults


def tiny() -> Instance:
    instance = random_instance(TINY)
    outcome = check(instance, WORK)
    assert outcome.faults == []
    assert outcome.optimum is not None
    assert 0 < outcome.optimum < np.inf
    return instance


def test_an_order_that_breaks_the_rules_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def incomplete(problem: Problem, **_: object) -> Schedule:
        schedule = solve(problem)
        first, *others = schedule.order
        return timed(replace(schedule, order=(first[:-1], *others)))

    instance = tiny()
    monkeypatch.setattr(checks, "solve", incomplete)
    assert any("never runs" in fault for fault in faults(instance))


def test_a_limit_that_is_ignored_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def unlimited(problem: Problem, **_: object) -> Schedule:
        return solve(replace(problem, memory_limit=(np.inf,) * problem.ranks))

    instance = next(i for i in map(random_instance, range(SLICE)) if not i.feasible)
    monkeypatch.setattr(checks, "solve", unlimited)
    assert faults(instance) == ["optimize: infeasible, but no InfeasibleError"]
