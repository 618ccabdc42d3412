"""Published bubble and memory formulas are met by what is built, where their conditions hold."""

from __future__ import annotations

import pytest

from benchmarks.published.formulas import METHODS, TIMES, Times, cell


@pytest.mark.parametrize("times", TIMES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_formula_is_met_exactly_where_its_condition_holds(method: str, times: Times) -> None:
    found, published = cell(method, 4, 3, times), METHODS[method]
    assert found["equal"] == published.holds(times)
    assert found["parameters"] == published.parameters
    assert found["activations"] == published.activations(4)
