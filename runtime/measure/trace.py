"""Measured times of one rank's ops, and of all ranks' ops as a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeloom.ir.model.ops import FloatArray, Op, pack
from pipeloom.ir.model.schedule import Schedule, Status, Timing

MILLISECONDS = 1e3


Row = tuple[Sequence[Op], Sequence[float], int]


def measured_schedule(planned: Schedule, rows: Sequence[Row]) -> Schedule:
    """Returns ``planned`` with measured times in place of the planned ones.

    ``rows``: for each rank, its ops, their times (on one clock for all ranks), and its peak bytes
    of activations. Times of the result are milliseconds since the start of the first op on any
    rank. The result has no transfers and no pairs of overlapping ops, as only single ops are
    measured, and no lower bound, as that only applies to the profile's times.
    """
    first = min((marks[0] for _, marks, _ in rows if marks), default=0.0)
    times = [_pairs(marks, first) for _, marks, _ in rows]
    timing = Timing(
        tuple(pairs[:, 0] for pairs in times),
        tuple(pairs[:, 1] for pairs in times),
        tuple(float(peak) for *_, peak in rows),
        np.empty((0, 2)),
        beside=tuple([i for i, op in enumerate(ops) if op.kind.copies] for ops, *_ in rows),
    )
    order = tuple(pack(ops) for ops, *_ in rows)
    report = planned.report and replace(
        planned.report, status=Status.FEASIBLE, lower_bound=None, bound=None
    )
    return replace(planned, order=order, transfers=(), report=report, timing=timing, pairs=())


def _pairs(seconds: Sequence[float], first: float) -> FloatArray:
    return (np.array(seconds, dtype=np.float64).reshape(-1, 2) - first) * MILLISECONDS
