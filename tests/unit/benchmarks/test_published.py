"""The table 5 benchmark: its published column for interleaving, and how it prints."""

from __future__ import annotations

import pytest

from benchmarks.published.table5 import OPTIMIZED, Row, load_rows
from benchmarks.published.wrap import published_makespan
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Status
from pipeloom.solver.families import build_family
from pipeloom.solver.optimize import optimize


@pytest.mark.parametrize("row", load_rows(), ids=str)
def test_interleaved_by_the_published_rule_to_four_digits(row: Row) -> None:
    schedule = build_family(f"interleaved-1f1b:{row.chunks}", row.profile, row.microbatches)
    timing = schedule.known_timing
    makespan = published_makespan(schedule)
    rate = 1 - timing.work / (row.profile.ranks * makespan)
    assert round(rate, 4) == row.published["interleaved-1f1b"]
    # the contract's rule, under which every microbatch waits at every boundary
    t_comm = row.profile.delays(None)[0, 1]
    assert timing.makespan == pytest.approx(makespan + row.profile.ranks * t_comm)
    assert timing.bubble_rate(Objective.PERIOD) > rate


@pytest.mark.parametrize("name", OPTIMIZED)
@pytest.mark.parametrize("row", load_rows(), ids=str)
def test_optimized_schedules_are_at_least_as_good_as_published(row: Row, name: str) -> None:
    problem = Problem.linear(row.profile, row.microbatches, row.limit(OPTIMIZED[name]))
    schedule = optimize(problem, time_limit=60.0)
    rate = round(schedule.known_timing.bubble_rate(Objective.PERIOD), 4)
    if name == "zb-1p":
        assert (rate, schedule.known_report.status) == (row.published[name], Status.OPTIMAL)
    else:
        assert rate <= row.published[name]


def test_there_are_twelve_rows_with_limits_in_their_own_unit() -> None:
    rows = load_rows()
    assert len(rows) == 12
    assert rows[0].limit(1.0) == 8 * 201216
    assert rows[-1].limit(2.0) == 64 * 454656
