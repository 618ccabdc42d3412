"""Explanations say what the bounds say, and the losses add up."""

from __future__ import annotations

import re

import pytest

from pipeloom import Objective, Placement, Problem, Profile, Schedule, StageProfile, build_family
from pipeloom.ir import timed
from pipeloom.ir.units import duration
from pipeloom.planner.explain.explanation import losses, why
from pipeloom.solver import lower_bounds
from pipeloom.solver.bounds.general import busy
from tests.support.by_hand import by_hand
from tests.support.inner import Report, lower_bound, one_at_a_time
from tests.support.large_problems import large_problem
from tests.support.table5 import load_rows
from tests.support.unequal import unequal

STAGE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)


def schedule(problem: Problem, report: Report | None = None) -> Schedule:
    return timed(Schedule(problem, one_at_a_time(problem), report=report))


def equal(ranks: int, microbatches: int, limit: float | None = None) -> Problem:
    """T_F = T_B = T_W = 1, M_B = 1, M_W = 0.5, no delays."""
    stages = (StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * ranks
    return Problem.linear(Profile(stages, ranks, 0.0), microbatches, limit)


def test_the_head_and_the_tail_of_rank_0_are_why() -> None:
    row = next(row for row in load_rows() if str(row) == "6.2B-24")
    reason = why(schedule(Problem.linear(row.profile, 24, row.limit(1.0))))
    assert (reason.name, reason.rank) == ("head-tail", 0)
    assert reason.words == (
        "rank 0 computes for 1898.1 ms and idles at least 289.4 ms",
        "213.49 ms before its first B: that B cannot come before 451.23 ms, "
        "and 8 microbatches fill its memory after 237.74 ms",
        "75.915 ms after its last F: that microbatch's B starts at least 451.23 ms after the F, "
        "and what memory holds then gives the rank 375.31 ms to compute meanwhile",
    )


def test_the_rank_that_all_microbatches_pass_is_why() -> None:
    row = next(row for row in load_rows() if str(row) == "1.5B-24")
    reason = why(schedule(Problem.linear(row.profile, 24, row.limit(2.0))))
    assert (reason.name, reason.rank) == ("through", 0)
    far, near = (float(x) for x in re.findall(r"([\d.]+) ms", " ".join(reason.words)))
    assert far + near == pytest.approx(reason.value, abs=0.1)
    assert "rank 7 takes at least" in reason.words[0]


def test_a_small_milp_names_the_rank_and_what_memory_gives() -> None:
    problem = large_problem("two copies", 0)
    report = Report(problem.objective, "optimized", lower_bound=330.0, bound="rank-moments")
    reason = why(schedule(problem, report))
    assert (reason.name, reason.value) == ("rank-moments", 330.0)
    assert reason.rank is not None
    assert f"rank {reason.rank} computes for 314.23 ms" in reason.words[0]
    assert "one M_B more on each rank the same argument gives" in reason.words[1]
    levels = large_problem("remat", 3)
    report = Report(levels.objective, "optimized", lower_bound=600.0, bound="remat-relaxation")
    reason = why(timed(Schedule(levels, one_at_a_time(levels), report=report)))
    assert (reason.name, reason.value) == ("remat-relaxation", 600.0)


def test_the_busiest_rank_is_why_where_memory_is_ample() -> None:
    stages = (StageProfile(1.0, 1.0, 1.0), StageProfile(3.0, 3.0, 3.0))
    reason = why(schedule(Problem.linear(Profile(stages, 2, 0.0), 6)))
    assert reason.rank == 1
    assert reason.words == (
        "rank 1 computes for 54 ms and runs one op at a time",
        "no order helps, only another cut or placement: shared out evenly, each rank would compute "
        "for 36 ms",
    )


@pytest.mark.parametrize(("family", "ranks"), [("1f1b", 1), ("fsdp", 2)])
def test_the_busiest_rank_computes_for_the_least_that_its_backwards_take(
    family: str, ranks: int
) -> None:
    stages = (StageProfile(1.0, 1.0, 1.0, t_bw=1.5),) * ranks
    reason = why(build_family(family, Profile(stages, ranks, 0.0), 6))
    assert reason.value == 15.0
    assert reason.words == ("rank 0 computes for 15 ms and runs one op at a time",)


def test_a_bound_that_a_search_has_proven_names_it_and_the_closed_form() -> None:
    problem = equal(2, 4, 1.0)
    closed = lower_bound(problem)
    report = Report(Objective.PERIOD, "optimized", lower_bound=closed.value + 2.0, bound="cp-sat")
    reason = why(schedule(problem, report))
    assert (reason.name, reason.value) == ("cp-sat", closed.value + 2.0)
    assert f"{duration(closed.value)} is" in reason.words[0]
    assert len(reason.words) > 1


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("kind", range(5))
def test_work_and_idle_time_of_the_rank_that_binds_are_the_bound(
    kind: int, objective: Objective
) -> None:
    for seed in range(kind, 40, 5):
        problem = unequal(seed, objective)
        reason = why(schedule(problem))
        assert reason.words
        if reason.name == "head-tail":
            assert reason.rank is not None
            idle = re.search(r"idles at least ([\d.]+) ms", reason.words[0])
            lag = re.search(r"starts at least ([\d.]+) ms after the first", reason.words[-1])
            parts = [float(found[1]) for found in (idle, lag) if found]
            total = busy(problem)[reason.rank] + sum(parts)
            if reason.words[0].startswith("any cheaper schedule"):  # would cost more, not less
                assert total > reason.value
                assert any("holds up" in words for words in reason.words)
            else:
                assert total == pytest.approx(reason.value, abs=0.2)


@pytest.mark.parametrize(
    "problem",
    [
        *(unequal(seed, objective) for seed in range(5) for objective in Objective),
        Problem(Profile((STAGE,) * 6, 2), 7, Placement.of_stages((0, 1, 1, 0, 0, 1)), (4.0, 4.0)),
        Problem(Profile((STAGE,) * 4, 4), 8, Placement.bidirectional(4), (4.0,) * 4),
    ],
)
def test_every_bound_can_be_explained(problem: Problem) -> None:
    for bound in lower_bounds(problem):
        assert all(bound.explained())
        assert (
            bound.rank is None
            or f"rank {bound.rank}" in " ".join(bound.explained())
            or (bound.numbers is None)
        )


def test_losses_of_a_schedule_by_hand() -> None:
    """Two ranks, unit times, one microbatch a time on rank 0::

    rank 0   F0 F1 .  B0 .  B1 W0 W1
    rank 1      F0 B0 F1 B1 W0 W1
    """
    rows = "0F0 0F1 0B0 0B1 0W0 0W1", "1F0 1B0 1F1 1B1 1W0 1W1"
    found = losses(by_hand(*rows, profile=equal(2, 2).profile))
    assert [(x.work, x.head, x.between, x.tail, x.spare) for x in found] == [
        (6.0, 1.0, 0.0, 1.0, 0.0),
        (6.0, 0.0, 0.0, 0.0, 2.0),
    ]
