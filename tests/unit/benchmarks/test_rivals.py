"""A sample of ``python -m benchmarks rivals/unlike``."""

from __future__ import annotations

from benchmarks.rivals.batches import batch
from benchmarks.rivals.unlike import compared, judge, shorter


def test_a_batch_is_planned_no_worse_than_the_others() -> None:
    row = compared(18, work_limit=1.0)
    assert row["faults"] == []
    assert row["lower_bound"] <= row["ours"] * (1 + 1e-9)
    assert shorter(row) >= -1e-9
    assert next(iter(judge([row]))).met


def test_the_seed_decides_all() -> None:
    (_, first), (_, again), (_, other) = (batch(7, seed, None) for seed in (1, 1, 2))
    assert first == again != other
    assert first.profile.unlike
