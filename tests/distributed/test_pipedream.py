"""PipeDream's parameters and losses are those of one process that simulates its staleness."""

from __future__ import annotations

from functools import cache

import pytest
from torch import Tensor

from tests.distributed.cases.pipedream import BOUNDS, Case, cases, run_cases, simulated
from tests.support.launched import launched

ALL = [case for ranks in (3, 4) for case in cases(ranks)]
outcomes = launched(cases, run_cases)


@cache
def expected(case: Case) -> tuple[dict[str, Tensor], list[float]]:
    return simulated(case)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_parameters_and_losses_are_those_of_the_simulation(case: Case) -> None:
    rows = outcomes(case.ranks)[case]
    parameters, losses = expected(case)
    assert max(row.difference for row in rows) <= BOUNDS[case.dtype]
    assert sum(row.parameters for row in rows) == len(parameters)
    last = next(row for row in rows if row.losses)
    assert last.losses == pytest.approx(losses, rel=BOUNDS[case.dtype])
