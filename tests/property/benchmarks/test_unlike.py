"""A sample of ``python -m benchmarks.unlike``."""

from __future__ import annotations

from benchmarks.unlike import compared, summary
from benchmarks.unlike.instances import instances


def test_a_batch_is_planned_no_worse_than_the_others() -> None:
    batch = instances(18, None)[18]
    row = compared(batch, 1.0, None)
    assert row["faults"] == []
    assert row["lower_bound"] <= row["ours"] * (1 + 1e-9)
    assert row["ours"] <= min(row["1f1b"], row["zb-h1"]) * (1 + 1e-9)
    assert summary([row])["worst_gap"] == row["gap"]


def test_the_seed_decides_all() -> None:
    first, again, other = (instances(seed, None)[7].problem for seed in (1, 1, 2))
    assert first == again != other
    assert first.profile.unlike
