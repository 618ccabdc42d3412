"""Makespans of a schedule with random op times: a Monte Carlo simulation of its fixed order.

The time of each op is drawn independently from a log-normal distribution, whose mean is the time in
the profile and whose relative standard deviation is the stage's spread. Delays, transfers and
copies to the host are not random.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.ops import FloatArray, OpKind, fields_of
from ..model.schedule import Schedule
from ..units import duration as in_words
from .dependency_graph import ScheduleGraph
from .graph_simulator import player
from .overlap import pair_starts

DRAWN, FEWEST, MOST = 2_000_000, 100, 1000
"""Random op times to draw for all samples together; minimum and maximum number of samples.

A sample is one simulation of the schedule.
"""
COMPUTED = (OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.R)


@dataclass(frozen=True, slots=True)
class ExpectedMakespan:
    """The distribution of a schedule's makespan if op times vary by the profile's spread.

    ``mean``, ``p95``: mean and 95th percentile of the simulated makespans, in ms. ``share_below``:
    the fraction of simulated makespans below the measured one; equal ones count as half.
    """

    mean: float
    p95: float
    share_below: float

    @classmethod
    def of(cls, planned: Schedule, measured: float) -> ExpectedMakespan | None:
        """The distribution for ``planned``, compared with the makespan ``measured`` in ms.

        Returns None if the profile has no spread.
        """
        spread = [stage.spread for stage in planned.problem.profile.stages]
        if all(each is None for each in spread):
            return None
        count = int(np.clip(DRAWN // max(planned.num_ops, 1), FEWEST, MOST))
        found = sampled_makespans(planned, [each or 0.0 for each in spread], samples=count)
        below = ((found < measured).mean() + (found <= measured).mean()) / 2
        return cls(float(found.mean()), float(np.quantile(found, 0.95)), float(below))

    def __str__(self) -> str:
        return (
            f"makespan {in_words(self.mean)} in the mean, 95th percentile {in_words(self.p95)}, by "
            f"the profile's spread; measured above {self.share_below:.0%} of simulated steps"
        )


def sampled_makespans(
    schedule: Schedule, spread: list[float], *, samples: int, seed: int = 0
) -> FloatArray:
    """Simulated makespans of ``schedule`` with random op times, in ms, (samples,).

    Gradient averaging over replicas is not included. ``spread``: relative standard deviation of
    each stage's op times, (S,). ``seed``: the seed of the random generator. Raises
    InvalidScheduleError if the order can never run.
    """
    graph, ops = ScheduleGraph.of(schedule), schedule.num_ops
    pairs, used = pair_starts(schedule), np.flatnonzero(np.diff(graph.offsets))
    first, last = graph.offsets[used], graph.offsets[used + 1] - 1
    kind, stage, _ = fields_of(np.concatenate(schedule.order).astype(np.int64))
    variance = np.log1p(np.square(np.where(np.isin(kind, COMPUTED), np.array(spread)[stage], 0.0)))
    play, rng, found = player(graph), np.random.default_rng(seed), np.empty(samples)
    for sample in range(samples):
        duration = graph.duration.copy()
        duration[:ops] *= np.exp(rng.standard_normal(ops) * np.sqrt(variance) - variance / 2)
        duration[pairs] = duration[pairs + 1]
        start, end = play(duration)
        found[sample] = end[last].max() - start[first].min()
    return found
