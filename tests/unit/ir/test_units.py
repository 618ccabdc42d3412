"""Sizes, times and counts in words."""

from __future__ import annotations

import math

import pytest

from pipeloom.cli.arguments import limit
from pipeloom.ir.units import amount, counted, sufficient_size
from pipeloom.report.text_table import table


@pytest.mark.parametrize(
    ("memory", "words", "exact"),
    [
        (0.0, "0", "0"),
        (7.94, "7.94", "7.94"),
        (999.5, "999.5", "999.5"),
        (2_000_000_000, "2 G", "2 GB"),
        (1_610_612_736, "1.611 G", "1.6107 GB"),
        (123_456_789_012_345, "123.5 T", "123.46 TB"),
        (2.5e15, "2.5 P", "2.5 PB"),
        (math.inf, "none", "none"),
    ],
)
def test_sizes_are_spelled_in_one_way(memory: float, words: str, exact: str) -> None:
    assert (amount(memory), sufficient_size(memory)) == (words, exact)


@pytest.mark.parametrize("memory", [1 / 3, 1234.5678, 1_610_612_735, 7**17, 2**49 + 1])
def test_a_size_that_suffices_can_be_typed_as_a_limit(memory: float) -> None:
    assert memory <= limit(sufficient_size(memory)) <= memory * (1 + 1e-4)


def test_times_in_a_column_have_one_unit() -> None:
    rows = table(["rank", "idle"], [["0", 0.8], ["1", 12.0], ["2", None], ["3", 0.0]]).splitlines()
    assert [row[4:].strip() for row in rows[2:]] == ["0.8 ms", "12 ms", "-", "0"]


def test_one_of_a_thing_is_singular() -> None:
    things = [counted(n, "rank") for n in (0, 1, 2)] + [counted(3, "microbatch")]
    assert things == ["0 ranks", "1 rank", "2 ranks", "3 microbatches"]
