"""Published bubble and memory formulas are met by what is built, where their conditions hold."""

from __future__ import annotations

import pytest

from benchmarks.formulas.study import METHODS, TIMES, Times, cell
from benchmarks.formulas.table import differences, table


@pytest.mark.parametrize("times", TIMES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_formula_is_met_exactly_where_its_condition_holds(method: str, times: Times) -> None:
    found = cell(method, 4, 3, times)
    assert found.equal == METHODS[method].holds(times)
    assert found.parameters[0] == found.parameters[1]
    assert found.activations[0] == found.activations[1]


def test_the_table_shows_one_row_for_each_method_and_times() -> None:
    found = [cell("1F1B", 8, rounds, TIMES[0]) for rounds in (2, 3)]
    assert list(table(found))[-1] == f"| 1F1B | {TIMES[0]} | 21 / 21 | 1 / 1 | 8 / 8 |"
    assert list(differences(found)) == ["1F1B, always: 2 of 2 equal"]
