"""Several tensors an edge, skips, lengths that vary: gradients are one process's.

The relative difference of a tensor is max|a - b| / max|b|; the worst parameter counts.
"""

from __future__ import annotations

import pytest

from tests.distributed.cases.bundles import CASES, RANKS, Case, run_cases
from tests.distributed.cases.gradients import BOUNDS
from tests.support.launched import launched

outcomes = launched(lambda _: CASES, run_cases)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_one_processs(case: Case) -> None:
    rows = outcomes(RANKS)[case]
    assert max(row.difference for row in rows) <= BOUNDS[case.dtype]
    assert sum(len(row.parameters) for row in rows) > 0
    found = sorted(value for row in rows for value in row.losses)
    assert found == pytest.approx(sorted(rows[0].expected_losses), rel=BOUNDS[case.dtype])
