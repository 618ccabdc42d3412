"""Measurements: one rank's ops, and those of all ranks as a schedule on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipeloom.ir.model.ops import FloatArray, Op, pack
from pipeloom.ir.model.schedule import Averaged, Schedule, Status, Timing

MILLISECONDS = 1e3


class Marks(NamedTuple):
    """Measured times of one rank, in seconds.

    ``ops``: start and end of each op, alternating. ``averages``: start and end of each stage's
    averaging over replicas; empty without replicas or on a GPU.
    """

    ops: Sequence[float]
    averages: Mapping[int, tuple[float, float]]

    def later(self, seconds: float) -> Marks:
        """Returns the times shifted by ``seconds``, as on another clock."""
        spans = {s: (start + seconds, end + seconds) for s, (start, end) in self.averages.items()}
        return Marks([mark + seconds for mark in self.ops], spans)


Row = tuple[Sequence[Op], Marks, int]


def measured_schedule(planned: Schedule, rows: Sequence[Row]) -> Schedule:
    """Returns ``planned`` with measured times; a row is one rank's ops, times and peak memory.

    Times are milliseconds since the first op's start on any rank. Transfers and pairs are removed,
    as only single ops are measured. The lower bound is removed, as it holds for the profile's
    times.
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
