"""A sample of ``python -m tests.property.small_exact``, and that its checks can fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.core.bound import Bound
from pipeloom.solver.optimize import optimize
from tests.property.small_exact import checked, checks, summary
from tests.property.small_exact.checks import Found
from tests.property.small_exact.instances import KINDS

TODAY = datetime.now(UTC).date().toordinal() * 10_000
"""A new seed every day."""


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=pytest.mark.slow)])
def test_no_bound_is_above_an_optimum(count: int) -> None:
    again = f"python -m tests.property.small_exact --seed {TODAY} --count {count}"
    found = list(map(checked, range(TODAY, TODAY + count)))
    assert [f"{one.kind}, seed {one.seed}: {line}" for one in found for line in one.wrong] == [], (
        again
    )
    rows = summary(found)
    assert list(rows) == list(KINDS)
    decided = sum(row["decided by the oracle"] for row in rows.values())  # 68 % of those on record
    assert decided > count / 3, again


def seeds_of(kind: str) -> Iterator[int]:
    """Those of problems of this kind of which every bound is checked."""
    first, turns = list(KINDS).index(kind), 8 * len(KINDS)
    return iter(range(first + turns, 800, turns))


def first_decided(kind: str) -> Found:
    """A problem whose optimum is found: its costs and bounds are right."""
    found = next(one for one in map(checked, seeds_of(kind)) if one.optimum)
    assert found.wrong == ()
    assert found.cost is not None
    return found


@pytest.mark.parametrize("kind", ["linear", "two copies", "offload", "unlike", "weights"])
def test_a_bound_above_the_optimum_is_a_fault(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = first_decided(kind)
    assert one.optimum is not None
    proud = Bound(1.001 * one.optimum, "proud", "")
    monkeypatch.setattr(checks, "lower_bounds", lambda _: iter([proud]))
    wrong = checked(one.seed).wrong
    assert [line.split()[1] for line in wrong if "above the optimum" in line] == ["proud"]


def test_a_bound_above_a_known_cost_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the oracle does not decide."""
    one = first_decided("linear")
    assert one.cost is not None
    proud = Bound(1.001 * one.cost, "proud", "")
    monkeypatch.setattr(checks, "lower_bounds", lambda _: iter([proud]))
    assert any("above a cost" in line for line in checked(one.seed, nodes=1).wrong)


def test_an_order_that_breaks_the_rules_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def incomplete(problem: Problem, **_: object) -> Schedule:
        schedule = optimize(problem, work_limit=0.1)
        first, *others = schedule.order
        return timed(replace(schedule, order=(first[:-1], *others)))

    one = first_decided("linear")
    monkeypatch.setattr(checks, "optimize", incomplete)
    assert any("never runs" in line for line in checked(one.seed).wrong)


def test_a_limit_that_is_ignored_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def unlimited(problem: Problem, **_: object) -> Schedule:
        return optimize(replace(problem, memory_limit=(np.inf,) * problem.ranks), work_limit=0.1)

    seed = next(n for n in range(0, 4000, len(KINDS)) if checked(n).cost is None)
    assert checked(seed).wrong == ()
    monkeypatch.setattr(checks, "optimize", unlimited)
    assert checked(seed).wrong == ("infeasible, but solved",)
