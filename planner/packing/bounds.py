"""A lower bound over all packings and all schedules together.

**Each sequence as a microbatch of its own.** Take any packing and any schedule of it, and let each
op be its sequences' ops, one after the other in the same time. Inputs are there, as the packed op
had all of them and a shorter message takes no longer; a sequence's memory is taken no earlier and
given back no later than its microbatch's was. So it is a schedule of the sequences as microbatches
that costs the same: every bound of these is a bound of every packing.

**Several replicas.** Sequences are divided among them, and the step is the slowest replica's. One
of them has at least an even share of any rank's work, and of memory times time; one has the
longest sequence.

**Memory, with the number of microbatches.** A microbatch j of t_j tokens holds k t_j of stage i for
the whole of its own way from there and back, D + u t_j at least, with the delays D: of ``count``
microbatches these sum to at least k (D T + u T^2 / count), T the tokens of all, as squares are
least where they are even; what each sequence's own square adds to its own memory's time comes on
top. That fits into the rank's limit times its span.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Problem
from pipeloom.solver.bounds.general import critical_path, work
from pipeloom.solver.bounds.unlike import Figures, unlike_bounds
from pipeloom.solver.core.tolerances import ROUNDING

from .sequence_costs import SequenceCosts


def packing_bound(costs: SequenceCosts, microbatches: int, replicas: int) -> float:
    """Milliseconds that no packing into ``microbatches`` each of ``replicas`` goes below, whatever
    its schedules: of the slowest replica's period or makespan, as the problem's objective says."""
    apart = _told_apart(costs.problem_of([[i] for i in range(len(costs.lengths))]))
    values = [work(apart).value / replicas, critical_path(apart).value]
    if replicas == 1:
        values += [bound.value for bound in unlike_bounds(apart)]
    else:
        values.append(_through(Figures.of(apart), replicas))
    if costs.problem.limited:
        values.append(_memory_time(costs, Figures.of(apart), microbatches, replicas))
    return max(values) * (1 - ROUNDING)


def _told_apart(problem: Problem) -> Problem:
    """The problem with figures by microbatch, also where all are alike."""
    stages = tuple(
        stage if stage.each else replace(stage, each=(stage,) * problem.microbatches)
        for stage in problem.profile.stages
    )
    return replace(problem, profile=replace(problem.profile, stages=stages))


def _through(of: Figures, replicas: int) -> float:
    """The bound of :func:`pipeloom.solver.bounds.unlike.through_each`, of the replica that has
    most of a stage's work."""
    least = []
    turns = (of.f + of.b).sum(axis=1) / replicas
    for i in range(len(turns)):
        come = (of.down[i:] - of.down[i]).min(axis=1)
        leave = (of.up[i:] - of.up[i]).min(axis=1)
        least.append(float((turns[i:] + come + leave).max() + of.w[i].min()))
    return max(least)


def _memory_time(costs: SequenceCosts, of: Figures, microbatches: int, replicas: int) -> float:
    """Memory times time, over the limit, of a replica that has at least an even share of it."""
    tokens = costs.lengths.astype(np.float64)
    total = float(tokens.sum())
    held = of.m_b[:, :1] / tokens[:1]
    waiting = of.m_w[:, :1] / tokens[:1]
    way, own = _ways(costs.linear), _ways(costs.square)
    delays = (of.trip - _trips(of)).min(axis=1)
    even = total**2 / (microbatches * replicas)
    cubes = float((tokens**3).sum())
    areas = held[:, 0] * (delays * total + way * even + own * cubes)
    areas += waiting[:, 0] * (costs.linear[2] * even + costs.square[2] * cubes)
    of_ranks = np.bincount(of.owner, areas, len(of.limit))
    with np.errstate(divide="ignore", invalid="ignore"):
        spans = np.where(of_ranks > 0, of_ranks / of.limit, 0.0)
    return float(spans.max()) / replicas


def _ways(per: FloatArray) -> FloatArray:
    """(S,): of a stage's F, all later stages' F and B, and its B."""
    both = per[0] + per[1]
    return np.asarray(np.cumsum(both[::-1])[::-1])


def _trips(of: Figures) -> FloatArray:
    """(S, n): round trips without delays."""
    both = of.f + of.b
    return np.asarray(np.cumsum(both[::-1], axis=0)[::-1] - of.b)
