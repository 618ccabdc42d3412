"""Makespans of a schedule with random op times: its fixed order, simulated on many samples.

The time of each op is drawn independently from a log-normal distribution; its mean is the profile's
time, its relative standard deviation the stage's spread. Delays, transfers and copies to the host
are not random.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import InvalidScheduleError
from ..kernels import kernel
from ..model.ops import FloatArray, IntArray, OpKind, fields_of
from ..model.schedule import Schedule
from ..units import duration
from .dependency_graph import ScheduleGraph, Successors, joined, undelayed
from .event_kernels import Wires, first_come
from .overlap import pair_starts
from .transfer_order import transfer_wires

DRAWN, FEWEST, MOST = 2_000_000, 100, 1000
"""Number of times to draw, and the least and greatest number of samples."""
BATCH = 500_000
"""Number of times that are drawn at once."""
COMPUTED = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.R)


@dataclass(frozen=True, slots=True)
class ExpectedMakespan:
    """Simulated makespans of a plan whose op times vary by the profile's spread.

    ``mean``, ``p95``: in ms. ``share_below``: the share of samples below the measured makespan.
    """

    mean: float
    p95: float
    share_below: float

    @classmethod
    def of(cls, planned: Schedule, measured: float) -> ExpectedMakespan | None:
        """Compare ``measured``, in ms, with the plan. None if the profile has no spread."""
        spread = [stage.spread for stage in planned.problem.profile.stages]
        if all(each is None for each in spread):
            return None
        count = int(np.clip(DRAWN // max(planned.num_ops, 1), FEWEST, MOST))
        found = sampled_makespans(planned, [each or 0.0 for each in spread], samples=count)
        below = ((found < measured).mean() + (found <= measured).mean()) / 2
        return cls(float(found.mean()), float(np.quantile(found, 0.95)), float(below))

    def __str__(self) -> str:
        return (
            f"makespan {duration(self.mean)} in the mean, 95th percentile {duration(self.p95)}, by "
            f"the profile's spread; measured above {self.share_below:.0%} of simulated steps"
        )


def sampled_makespans(
    schedule: Schedule, spread: list[float], *, samples: int, seed: int = 0
) -> FloatArray:
    """Makespans of ``schedule``, in ms, without averaging over replicas, shape (samples,).

    ``spread``: relative standard deviation of each stage's op times, (S,). Raises
    InvalidScheduleError if the order can never run.
    """
    graph, ops = ScheduleGraph.of(schedule), schedule.num_ops
    paths, pairs = _Paths.of(schedule, graph), pair_starts(schedule)
    kind, stage, _ = fields_of(np.concatenate(schedule.order).astype(np.int64))
    variance = np.log1p(np.square(np.where(np.isin(kind, COMPUTED), np.array(spread)[stage], 0.0)))
    rng, found = np.random.default_rng(seed), []
    batch = max(1, BATCH // len(graph.duration))
    for first in range(0, samples, batch):
        count = min(batch, samples - first)
        durations = np.repeat(graph.duration[:, None], count, axis=1)
        normal = rng.standard_normal((ops, count))
        durations[:ops] *= np.exp(normal * np.sqrt(variance)[:, None] - variance[:, None] / 2)
        durations[pairs] = durations[pairs + 1]
        found.append(paths.makespans(durations))
    return np.concatenate(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Paths:
    """The nodes in topological order, with the edges into each of them."""

    order: IntArray
    first: IntArray  # (N + 1,) where each node's edges begin
    origin: IntArray
    delay: FloatArray
    begins: IntArray  # first op
    ends: IntArray  # and last op of each rank that has ops

    @classmethod
    def of(cls, schedule: Schedule, graph: ScheduleGraph) -> _Paths:
        edges = [*graph.all_edges, undelayed(*transfer_wires(schedule).turns())]
        nodes = len(graph.duration)
        successors, (start, end) = Successors.of(edges, nodes), np.zeros((2, nodes))
        order = first_come(*successors, graph.duration, *Wires.of(nodes), True, start, end)
        if len(order) < nodes:
            raise InvalidScheduleError(["order: ops wait for each other in a circle"])
        origin, to, delay = joined(edges)
        by_target = np.argsort(to, kind="stable")
        first = np.concatenate([[0], np.cumsum(np.bincount(to, minlength=nodes))])
        used = np.diff(graph.offsets) > 0
        begins, ends = graph.offsets[:-1][used], graph.offsets[1:][used] - 1
        return cls(order, first, origin[by_target], delay[by_target], begins, ends)

    def makespans(self, durations: FloatArray) -> FloatArray:
        """The makespan of each sample in ms, (n,).

        ``durations``: (N, n), the duration of each node in each sample.
        """
        end = np.empty(durations.shape)
        _run(self.order, self.first, self.origin, self.delay, durations, end)
        opened = (end[self.begins] - durations[self.begins]).min(axis=0)
        found: FloatArray = end[self.ends].max(axis=0) - opened
        return found


@kernel
def _run(  # noqa: PLR0917
    order: IntArray,
    first: IntArray,
    origin: IntArray,
    delay: FloatArray,
    durations: FloatArray,  # (N, n)
    end: FloatArray,  # (N, n) out
) -> None:
    samples = durations.shape[1]
    for node in order:
        row = end[node]
        row[:] = 0.0
        for edge in range(first[node], first[node + 1]):
            before, lag = end[origin[edge]], delay[edge]
            for k in range(samples):
                row[k] = max(row[k], before[k] + lag)
        for k in range(samples):
            row[k] += durations[node, k]
