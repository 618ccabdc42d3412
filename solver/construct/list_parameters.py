"""Inputs of the list schedulers: arrays of the stages, and parameters that a search changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.problem import Problem

from ..core.streams import streams_of
from ..core.tolerances import ROUNDING
from ..core.unlike import typical
from .list_scheduler_linear import ANY

STRICT = 1000.0  # an offset larger than any microbatch's place: a strict priority
# memory is small if the memory-time of a microbatch needs more than this share of limit times work
CROWDED = 0.6


class Stages(NamedTuple):
    """Arrays of the stages, for kernels: by stage (S,) or by rank (P,).

    ``S`` counts the stages of each direction. If microbatches are unlike, times, sizes and delays
    have shape (S, M). ``own[offsets[r]:offsets[r + 1]]``: the stages of rank r; ``level``: a
    stage's index among the stages of its rank. ``into_f``, ``into_b``: the delay before F and
    before B. ``work``: of each rank. ``meeting``: the median over the stages of T_F + T_B and both
    delays; microbatches that start a multiple of it apart meet without waiting. It is 0 unless
    memory is so small that it slows microbatches down. ``names``: the microbatches of each
    direction, shape (1 or 2, M).
    """

    f: FloatArray
    b: FloatArray
    w: FloatArray
    m_b: FloatArray
    m_w: FloatArray
    into_f: FloatArray
    into_b: FloatArray
    owner: IntArray
    level: IntArray
    own: IntArray
    offsets: IntArray
    limit: FloatArray
    work: FloatArray
    meeting: float
    names: IntArray

    @classmethod
    def of(cls, problem: Problem) -> Stages:
        unlike, each = problem.profile.unlike, Costs.of(problem)
        costs = Costs.of(typical(problem)) if unlike else each
        names = np.array(streams_of(problem), dtype=np.int64)
        first = names[:, 0]
        owner: IntArray = costs.owner[:, first].T.ravel()
        into_f: FloatArray = costs.into_f[:, first].T.ravel()
        into_b: FloatArray = costs.into_b[:, first].T.ravel()
        f, b, w, m_b, m_w = (
            np.tile(of, len(names)) for of in (*costs.durations[:3], costs.m_b, costs.m_w)
        )
        depth, times = np.tile(np.arange(problem.stages), len(names)), f + b + w
        rows = [np.flatnonzero(owner == rank) for rank in range(problem.ranks)]
        rows = [row[np.argsort(depth[row], kind="stable")] for row in rows]
        level = np.zeros(len(f), dtype=np.int64)
        for row in rows:
            level[row] = np.arange(len(row))
        ways = f[:-1] + b[1:] + into_f[1:] + into_b[:-1]
        passed = (f + b + into_f + into_b).reshape(len(names), -1)
        stay = passed[:, ::-1].cumsum(axis=1)[:, ::-1].ravel() - into_f
        held = np.bincount(owner, m_b * stay, problem.ranks)
        busy = np.bincount(owner, times, problem.ranks)
        with np.errstate(invalid="ignore"):
            crowded = bool((held > CROWDED * busy.max() * costs.limit).any())
        tables = f, b, w, m_b, m_w, into_f, into_b
        if unlike:
            f, b, w = each.durations[:3].copy()
            tables = f, b, w, each.m_b, each.m_w, each.into_f, each.into_b
        return cls(
            *tables,
            owner,
            level,
            np.concatenate(rows).astype(np.int64),
            np.cumsum([0, *map(len, rows)]).astype(np.int64),
            costs.limit * (1 + ROUNDING),
            names.shape[1] * np.array([float(times[row].sum()) for row in rows]),
            float(np.median(ways)) if crowded and len(ways) else 0.0,
            names,
        )


class ListParameters(NamedTuple):
    """The heuristic parameters of the list scheduler.

    ``key``: offsets of F's and B's, in microbatches, (2, S). ``ahead``: the most microbatches
    between F and B, (S,). ``reserve``: the memory that an F must leave free, (S,). ``defer``: the
    most W's that wait while something else can run, (P,). ``fill``: a W runs if the next input
    arrives no earlier than ``fill`` x T_W from now, (P,). ``patience``: a rank waits up to this
    long for an op with a lower key, (S,). ``gap``: on a first stage, the least time from the start
    of one F to the start of the next, (streams, M). ``entry``: the order in which microbatches
    enter, as positions in ``names``, (M,).
    """

    key: FloatArray
    ahead: IntArray
    reserve: FloatArray
    defer: IntArray
    fill: FloatArray
    patience: FloatArray
    gap: FloatArray
    entry: IntArray

    def copy(self) -> ListParameters:
        return ListParameters._make(array.copy() for array in self)


def list_parameters(
    stages: Stages, rng: np.random.Generator, entries: Sequence[IntArray] = ()
) -> Iterator[ListParameters]:
    """Yield random parameters without end.

    They determine which ops go first, how W's fill gaps and how F's are spaced. ``stages``: of the
    mean microbatch. Microbatches enter in their given order, or in that of each of ``entries`` in
    turn. If memory is small, every second one has no offsets and spaces the F's by whole
    ``meeting`` times, about as many as the work takes.
    """
    number, ranks = len(stages.f), len(stages.limit)
    streams, microbatches = stages.names.shape
    turns = cycle(entries or (np.arange(microbatches),))
    levels = int(stages.level.max()) + 1
    higher = np.empty(number)  # M_B of the later stages on the same rank
    for s in range(number):
        same = stages.owner == stages.owner[s]
        higher[s] = stages.m_b[same & (stages.level > stages.level[s])].sum()
    turn = float(stages.work.max()) / microbatches
    room = float(stages.limit[stages.owner[0]] / max(stages.m_b[0], 1e-300))
    while True:
        if stages.meeting > 0:
            meetings = max(1, int(np.ceil(turn / stages.meeting))) + int(rng.integers(-1, 2))
            yield ListParameters(
                np.zeros((2, number)),
                np.full(number, microbatches),
                higher * float(rng.integers(0, 2)),
                np.full(ranks, ANY),
                np.full(ranks, rng.uniform(0.3, 1.1)),
                np.asarray(rng.uniform(0.0, 0.4) * stages.f, dtype=np.float64),
                np.full(streams * microbatches, stages.meeting * meetings),
                next(turns).copy(),
            )
        scale = float(rng.choice((0.0, 0.5, 2.0, STRICT)))
        offsets = scale * rng.permutation(2 * levels).reshape(2, levels).astype(np.float64)
        key: FloatArray = np.ascontiguousarray(offsets[:, stages.level])
        gap = np.zeros(microbatches)
        warm = int(rng.uniform(0.3, 1.0) * min(room, microbatches))
        gap[warm:] = rng.uniform(0.7, 1.6) * turn
        yield ListParameters(
            key,
            np.full(number, microbatches),
            higher * float(rng.integers(1, 3)),
            np.full(ranks, ANY),
            np.full(ranks, rng.uniform(0.3, 1.0)),
            np.asarray(float(rng.choice((0.0, 0.2, 0.5))) * stages.f, dtype=np.float64),
            np.tile(gap, streams),
            next(turns).copy(),
        )
