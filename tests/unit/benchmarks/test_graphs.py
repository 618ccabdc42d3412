"""Rows and targets of whole steps with stages as graphs."""

from __future__ import annotations

import pytest

from benchmarks.split.steps import OURS, SPLIT, WHOLE, Case, summary


def test_a_step_counts_from_the_first_ranks_start_to_the_last_ranks_end() -> None:
    ways = (*OURS, SPLIT, WHOLE)
    ranks = {0: [(0.0, 0.01), (1.0, 1.03)], 1: [(0.005, 0.02), (1.01, 1.02)]}
    taken = {key: [0.01, 0.02] for key in ways}
    found = summary(
        Case(64, 2), {r: (dict.fromkeys(ways, spans), taken, "no") for r, spans in ranks.items()}
    )
    assert found["ms"] == pytest.approx(dict.fromkeys(ways, 25.0))
    assert found["cpu_ms"] == pytest.approx(dict.fromkeys(ways, 30.0))
    assert found["torch_says"] == "no"
