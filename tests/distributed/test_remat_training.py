"""At limits that no schedule keeps without recomputation or offload: gradients are one process's,
memory is within them."""

from __future__ import annotations

from functools import cache

import pytest

from pipeloom.runtime.launch.processes import launch
from tests.distributed.cases.gradients import BOUNDS
from tests.distributed.cases.remat import Case, Outcome, cases, level_cases, planned, run_cases

ALL = [*cases(2), *(pytest.param(case, marks=pytest.mark.slow) for case in cases(4))]


@cache
def outcomes(ranks: int) -> dict[Case, list[Outcome]]:
    """All cases of one number of ranks in one launch, planned here."""
    every = [*cases(ranks), *(level_cases(ranks) if ranks == 4 else [])]
    chosen = [(case, planned(case.lever, ranks, case.dtype)) for case in every]
    found = launch(run_cases, ranks, (chosen,), timeout=240, message_timeout=60)
    return {case: [found[rank][i] for rank in range(ranks)] for i, case in enumerate(every)}


@pytest.mark.parametrize("case", ALL, ids=str)
def test_what_is_recomputed_or_offloaded_trains_alike_within_its_limit(case: Case) -> None:
    rows = outcomes(case.ranks)[case]
    assert all(row.violations == () for row in rows)
    assert all(row.limit < row.infeasible_without for row in rows)
    assert all(row.pulled > 0 for row in rows)
    assert max(row.difference for row in rows) <= BOUNDS[case.dtype]
    assert all(0 < row.peak <= row.limit for row in rows), [(row.peak, row.limit) for row in rows]
    last = next(row for row in rows if row.losses)
    assert last.losses == pytest.approx(last.expected_losses, rel=BOUNDS[case.dtype])


@pytest.mark.slow  # on two ranks: test_graphs.py
@pytest.mark.parametrize("case", level_cases(4), ids=str)
def test_what_is_recomputed_in_part_trains_alike(case: Case) -> None:
    rows = outcomes(case.ranks)[case]
    assert all(row.violations == () for row in rows)
    assert all(row.pulled == 12 for row in rows)
    assert max(row.difference for row in rows) <= BOUNDS[case.dtype]
    assert all(0.8 * row.limit <= row.peak <= row.limit for row in rows)
