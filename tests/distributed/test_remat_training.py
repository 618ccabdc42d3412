"""At limits that no schedule keeps without recomputation or offload: gradients are one process's,
memory is within them."""

from __future__ import annotations

from functools import cache

import pytest

from pipeloom.runtime.launch.processes import launch
from tests.distributed.cases.gradients import BOUNDS
from tests.distributed.cases.remat import Case, Outcome, cases, planned, run_cases

ALL = [*cases(2), *(pytest.param(case, marks=pytest.mark.slow) for case in cases(4))]


@cache
def outcomes(ranks: int) -> dict[Case, list[Outcome]]:
    """All cases of one number of ranks in one launch, planned here."""
    chosen = [(case, planned(case.lever, ranks, case.dtype)) for case in cases(ranks)]
    found = launch(run_cases, ranks, (chosen,), timeout=240, message_timeout=60)
    return {case: [found[rank][i] for rank in range(ranks)] for i, (case, _) in enumerate(chosen)}


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
