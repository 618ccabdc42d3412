"""Measured times of one rank's ops, and of all ranks' ops as a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipeloom.ir.model.ops import FloatArray, Op, pack
from pipeloom.ir.model.schedule import Averaged, Schedule, Status, Timing

MILLISECONDS = 1e3


class Marks(NamedTuple):
    """Measured times of one step on one rank, in seconds of ``time.perf_counter``.

    ``ops``: start and end of each op, alternating, in the order in which the rank runs the ops.
    ``averages``: by stage, start and end of the average of its gradients over replicas; empty
    without replicas or on a GPU.
    """

    ops: Sequence[float]
    averages: Mapping[int, tuple[float, float]]

    def later(self, seconds: float) -> Marks:
        """Returns the times plus ``seconds``, which converts them to another rank's clock."""
        spans = {s: (start + seconds, end + seconds) for s, (start, end) in self.averages.items()}
        return Marks([mark + seconds for mark in self.ops], spans)


Row = tuple[Sequence[Op], Marks, int]


def measured_schedule(planned: Schedule, rows: Sequence[Row]) -> Schedule:
    """Returns ``planned`` with measured times in place of the planned ones.

    ``rows``: for each rank, its ops, their times (on one clock for all ranks), and its peak bytes
    of activations. Times of the result are milliseconds since the start of the first op on any
    rank. The result has no transfers and no pairs of overlapping ops, as only single ops are
    measured, and no lower bound, as that only applies to the profile's times.
    """
    first = min((marks.ops[0] for _, marks, _ in rows if marks.ops), default=0.0)
    times = [_pairs(marks.ops, first) for _, marks, _ in rows]
    timing = Timing(
        tuple(pairs[:, 0] for pairs in times),
        tuple(pairs[:, 1] for pairs in times),
        tuple(float(peak) for *_, peak in rows),
        np.empty((0, 2)),
        beside=tuple([i for i, op in enumerate(ops) if op.kind.copies] for ops, *_ in rows),
        averages=tuple(_averages(marks.averages, first) for _, marks, _ in rows),
    )
    order = tuple(pack(ops) for ops, *_ in rows)
    report = planned.report and replace(
        planned.report, status=Status.FEASIBLE, lower_bound=None, bound=None
    )
    return replace(planned, order=order, transfers=(), report=report, timing=timing, pairs=())


def _averages(spans: Mapping[int, tuple[float, float]], first: float) -> tuple[Averaged, ...]:
    found = [
        Averaged(stage, (start - first) * MILLISECONDS, (end - first) * MILLISECONDS)
        for stage, (start, end) in spans.items()
    ]
    return tuple(sorted(found, key=lambda one: one.start))


def _pairs(seconds: Sequence[float], first: float) -> FloatArray:
    return (np.array(seconds, dtype=np.float64).reshape(-1, 2) - first) * MILLISECONDS
