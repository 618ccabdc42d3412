"""Stopping criteria: each alone, and whichever comes first."""

from __future__ import annotations

import pytest

from pipeloom.solver.core import stopping
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.stopping import (
    NEVER,
    Budget,
    FirstOf,
    Interrupt,
    TimeLimit,
    WorkLimit,
)


def test_time_runs_from_the_moment_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(stopping, "monotonic", lambda: now[0])
    limit = TimeLimit(4.0)
    now[0] = 103.0
    assert (limit.left, limit.share_left, limit()) == (1.0, 0.25, False)
    now[0] = 104.0
    assert limit()
    assert TimeLimit().share_left == 1.0


def test_work_is_counted() -> None:
    limit = WorkLimit(10.0)
    limit.spend(6.0)
    assert (limit.left, limit()) == (4.0, False)
    limit.spend(6.0)
    assert (limit.left, limit()) == (0.0, True)


def test_whichever_comes_first() -> None:
    interrupt, work = Interrupt(), WorkLimit(1.0)
    either = FirstOf(interrupt, work)
    assert not either()
    interrupt.put()
    assert either()
    interrupt.put(False)
    work.spend(1.0)
    assert either()
    assert not NEVER()


def test_a_share_of_a_budget_is_of_what_it_was_at_first() -> None:
    whole = Budget(ops=100.0)
    whole.work.spend(100.0)
    part = whole.share(0.25)
    assert whole()
    assert not part()
    assert part.work.ops == 25.0
    whole.interrupt.put()
    assert part()


def test_options_are_shared_out() -> None:
    options = SolveOptions(solver="heuristic", time_limit=8.0, work_limit=2.0, seed=3)
    half = options.share(0.5)
    assert (half.time_limit, half.work_limit, half.seed) == (4.0, 1.0, 3)
    part = options.part(Budget(ops=5e5), NEVER)
    assert (part.work_limit, part.ops, part.solver) == (0.5, 5e5, "heuristic")
    assert options.budget.time.seconds == float("inf")
