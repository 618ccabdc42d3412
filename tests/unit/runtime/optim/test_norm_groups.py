"""Which parameters are shards."""

from __future__ import annotations

import pytest

from pipeloom.ir import InputError
from tests.support.inside import named_axes

ONE, TWO = (0, 1), (0, 2)


def test_a_parameter_is_a_shard_over_the_groups_of_all_patterns_that_name_it() -> None:
    patterns = {"table.*": TWO, "h*": TWO, "*p.weight": ONE, "up.*": TWO}
    names = "table.weight", "head.weight", "up.weight", "norm.weight"
    found = [named_axes(0, name, patterns, ()) for name in names]
    assert found == [{TWO}, {TWO}, {ONE, TWO}, set()]


def test_a_pattern_for_a_dtensor_is_refused() -> None:
    with pytest.raises(InputError, match=r"none for a DTensor, .* up\.weight of stage 1"):
        named_axes(1, "up.weight", {"up.*": (0, 3)}, (0, 3))
    assert named_axes(1, "up.weight", {"up.*": ONE}, (0, 3)) == {ONE}


def test_a_group_within_another_one_counts_no_more() -> None:
    every = (0, 1, 2, 3)
    assert named_axes(1, "up.weight", {"up.*": ONE, "*": every}, ()) == {every}
