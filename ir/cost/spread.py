"""A schedule where op times vary: its fixed order, simulated on many samples at once.

By default the time of each op is drawn by itself, from a log-normal distribution whose mean is the
profile's time and whose relative standard deviation is the stage's spread. Delays, transfers and
copies to the host take what they take. Draws belong to (kind, stage, microbatch), not to places in
an order, so schedules of one problem are compared on the same samples. A BW has the draw of a B.

Each cost is a longest path less the start of a rank's first op, so its derivative by the time of
an op is 1 on the path that is longest, 0 elsewhere (and -1 on the way to that first op, for the
period): the mean over samples is the share of its lateness that the step feels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..errors import InvalidScheduleError
from ..kernels import kernel
from ..model.ops import FloatArray, IntArray, OpKind, fields_of
from ..model.problem import Objective, Problem
from ..model.schedule import Schedule
from ..units import duration
from .dependency_graph import ScheduleGraph, Successors, joined, undelayed
from .event_kernels import Wires, first_come
from .overlap import pair_starts
from .transfer_order import transfer_wires

SAMPLES = 4096
BATCH = 500_000
"""Times that are drawn at once: by the problem, so that all its schedules have the same."""
KINDS = (OpKind.F, OpKind.B, OpKind.W, OpKind.R)
ROWS = np.array([0, 1, 2, 1, 3, -1, -1])
"""The row of :data:`KINDS` that each kind is drawn by, none for copies to the host."""


class Ratios(Protocol):
    """The source of sampled op times."""

    def draw(self, problem: Problem, samples: int, rng: np.random.Generator) -> FloatArray:
        """Sampled times over those of the profile, by :data:`KINDS`, shape (4, S, M, samples)."""
        ...


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Ops late by themselves; ``spread``: relative standard deviation, one a stage."""

    spread: tuple[float, ...]

    def draw(self, problem: Problem, samples: int, rng: np.random.Generator) -> FloatArray:
        variance = np.log1p(np.square(self.spread))[:, None, None]
        shape = (len(KINDS), problem.stages, problem.microbatches, samples)
        normal: FloatArray = rng.standard_normal(shape)
        normal *= np.sqrt(variance)
        normal -= variance / 2
        return np.exp(normal, out=normal)


@dataclass(frozen=True, slots=True, eq=False)
class StepSamples:
    """``costs``: of each sample, ms, shape (n,); ``felt``: of each op, rank after rank, the share
    of its lateness that the cost feels, shape (N,)."""

    costs: FloatArray
    felt: FloatArray

    @property
    def mean(self) -> float:
        return float(self.costs.mean())

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.costs, share))

    def rank_of(self, cost: float) -> float:
        """The share of samples that cost less, those that cost as much counted by half."""
        return float(((self.costs < cost).mean() + (self.costs <= cost).mean()) / 2)


def sample_steps(
    schedule: Schedule,
    ratios: Ratios,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    slow: FloatArray | None = None,
    objective: Objective | None = None,
) -> StepSamples:
    """The costs of ``schedule`` by ``objective``, its problem's by default, without averaging over
    replicas.

    ``slow``: how many times as long each rank takes, shape (P,). Raises InvalidScheduleError where
    the order can never run.
    """
    problem, graph = schedule.problem, ScheduleGraph.of(schedule)
    period = (objective or problem.objective) is Objective.PERIOD
    paths = _Paths.of(schedule, graph)
    kind, stage, microbatch = fields_of(np.concatenate(schedule.order).astype(np.int64))
    row, pairs, ops = ROWS[kind], pair_starts(schedule), schedule.num_ops
    rng, felt = np.random.default_rng(seed), np.zeros(len(graph.duration))
    base = graph.duration.copy()
    if slow is not None:
        base[:ops] *= np.where(row >= 0, slow[graph.ranks], 1.0)
    found, batch = [], max(1, BATCH // (len(KINDS) * problem.stages * problem.microbatches))
    for first in range(0, samples, batch):
        count = min(batch, samples - first)
        drawn = ratios.draw(problem, count, rng)
        durations = np.repeat(base[:, None], count, axis=1)
        durations[:ops] *= np.where((row >= 0)[:, None], drawn[row, stage, microbatch], 1.0)
        durations[pairs] = durations[pairs + 1]
        found.append(paths.costs(durations, felt, period=period))
    return StepSamples(np.concatenate(found), felt[:ops] / samples)


@dataclass(frozen=True, slots=True)
class ExpectedMakespan:
    """Makespans of a plan whose op times spread as its profile says, in ms, and the share of them
    that is below the measured one."""

    mean: float
    p95: float
    share_below: float

    @classmethod
    def of(cls, planned: Schedule, measured: float) -> ExpectedMakespan | None:
        """None where the profile has no spread."""
        spread = [stage.spread for stage in planned.problem.profile.stages]
        if all(each is None for each in spread):
            return None
        found = sample_steps(
            planned,
            LogNormal(tuple(each or 0.0 for each in spread)),
            samples=int(np.clip(2e6 // max(planned.num_ops, 1), 100, 1000)),
            objective=Objective.MAKESPAN,
        )
        return cls(found.mean, found.quantile(0.95), found.rank_of(measured))

    def __str__(self) -> str:
        return (
            f"makespan {duration(self.mean)} in the mean, 95th percentile {duration(self.p95)}, by "
            f"the profile's spread; measured is longer than {self.share_below:.0%} of steps"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Paths:
    """Nodes in an order in which each follows its causes, with the edges into each."""

    order: IntArray
    first: IntArray  # (N + 1,) where each node's edges begin
    origin: IntArray
    delay: FloatArray
    begins: IntArray  # first op and
    ends: IntArray  # last op of each rank that has any

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

    def costs(self, durations: FloatArray, felt: FloatArray, *, period: bool) -> FloatArray:
        """The cost of each sample, shape (n,); adds to ``felt``, (N,)."""
        costs, end = np.empty(durations.shape[1]), np.empty(durations.shape)
        edges = (self.first, self.origin, self.delay)
        _run(self.order, *edges, durations, end)
        _decide(*edges, self.begins, self.ends, durations, end, period, costs, felt)
        return costs


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


@kernel
def _walk(  # noqa: PLR0917
    first: IntArray,
    origin: IntArray,
    delay: FloatArray,
    end: FloatArray,
    node: int,
    k: int,
    weight: float,
    felt: FloatArray,
) -> None:
    """Adds ``weight`` to the ops on the longest path to the start of ``node``."""
    while first[node] < first[node + 1]:
        latest, cause = -1.0, node
        for edge in range(first[node], first[node + 1]):
            came = end[origin[edge], k] + delay[edge]
            if came > latest:
                latest, cause = came, origin[edge]
        node = cause
        felt[node] += weight


@kernel
def _decide(  # noqa: PLR0917
    first: IntArray,
    origin: IntArray,
    delay: FloatArray,
    begins: IntArray,
    ends: IntArray,
    durations: FloatArray,
    end: FloatArray,
    period: bool,
    costs: FloatArray,  # (n,) out
    felt: FloatArray,  # (N,) added to
) -> None:
    for k in range(len(costs)):
        longest, opening, closing = -1.0, 0, 0
        for r in range(len(begins)):
            span = end[ends[r], k]
            if period:
                span -= end[begins[r], k] - durations[begins[r], k]
            if span > longest:
                longest, opening, closing = span, begins[r], ends[r]
        if not period:
            opens = np.inf
            for r in range(len(begins)):
                began = end[begins[r], k] - durations[begins[r], k]
                if began < opens:
                    opens, opening = began, begins[r]
            longest -= opens
        costs[k] = longest
        felt[closing] += 1.0
        _walk(first, origin, delay, end, closing, k, 1.0, felt)
        _walk(first, origin, delay, end, opening, k, -1.0, felt)
