"""Every problem can be explained, and the figures of the explanation are consistent."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeloom import InfeasibleError, Schedule, explain
from pipeloom.ir import timed
from pipeloom.solver import lower_bound, one_at_a_time
from tests.property.small_exact.instances import problem_of


@pytest.mark.parametrize("kind", ["linear", "v", "several stages a rank", "magnitudes"])
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_every_problem_is_explained(kind: str, seed: int) -> None:
    problem = problem_of(kind, seed)
    try:
        bound = lower_bound(problem).value
    except InfeasibleError:
        assume(False)
    found = explain(timed(Schedule(problem, one_at_a_time(problem))))
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["bound"]["words"]
    assert str(found).startswith("why no schedule is below")
    cost = found.cost
    assert found.reason.value == pytest.approx(bound)
    for loss in found.losses:
        parts = (loss.work, loss.head, loss.between, loss.tail, loss.spare)
        assert sum(parts) == pytest.approx(cost, rel=1e-9, abs=1e-9)
        assert min(parts) >= -1e-9 * cost
