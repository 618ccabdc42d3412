"""Every family's gradients are one process's, on two, three and four ranks.

The relative difference of a tensor is max|a - b| / max|b|; the worst parameter counts.
"""

from __future__ import annotations

import pytest

from pipeloom.solver.families import ASYNCHRONOUS, FAMILIES
from tests.distributed.cases.gradients import BOUNDS, Case, V, cases, run_cases
from tests.support.families import REPLICATED, TRAVELLING
from tests.support.launched import launched
from tests.support.models import TinyTransformer

ALL = [case for ranks in (2, 3, 4) for case in cases(ranks)]
outcomes = launched(cases, run_cases, lambda case: case.slow)


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=str(c), marks=[pytest.mark.slow] if c.slow else []) for c in ALL]
)
def test_gradients_are_one_processs(case: Case) -> None:
    rows = outcomes(case.ranks, case.slow)[case]
    assert max(row.difference for row in rows) <= BOUNDS[case.dtype]
    last = next(row for row in rows if row.losses)
    assert last.losses == pytest.approx(last.expected_losses, rel=BOUNDS[case.dtype])


def test_every_synchronous_family_is_tried_here_or_where_weights_travel_or_stages_are_replicated() -> (  # noqa: E501
    None
):
    tried = {case.family for case in ALL if case.ranks == 4 and not case.slow} - {V}
    assert tried | {*TRAVELLING, *REPLICATED, *ASYNCHRONOUS} == set(FAMILIES)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_parameter_was_compared(ranks: int) -> None:
    for case, rows in outcomes(ranks).items():
        stages = 1 + max(int(name.split(".")[0]) for row in rows for name in row.parameters)
        modules = [make() for make in TinyTransformer(case.dtype).stages(stages)]
        names = [f"{s}.{name}" for s, m in enumerate(modules) for name, _ in m.named_parameters()]
        assert sorted(name for row in rows for name in row.parameters) == sorted(names)
