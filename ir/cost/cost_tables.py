"""The cost model's numbers as arrays: the one place where a problem turns into delays and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..kernels import kernel
from ..model.ops import FloatArray, IntArray, OpKind, fields_of, levels_of
from ..model.problem import Problem
from ..model.profile import Profile, StageProfile


@kernel
def of_kind(table: FloatArray, row: int, stage: int, microbatch: int) -> float:
    """An entry of a table by row and stage, and by microbatch where these are unlike.

    Which of the two it is a kernel is compiled for: where microbatches are alike nothing is added.
    """
    if table.ndim == 2:
        return float(table[row, stage])
    return float(table[row, stage, microbatch])


@kernel
def of_pair(table: FloatArray, stage: int, microbatch: int) -> float:
    """An entry of a table by stage, and by microbatch where these are unlike."""
    if table.ndim == 1:
        return float(table[stage])
    return float(table[stage, microbatch])


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Times and sizes of a problem of S stages, M microbatches and P ranks, as arrays.

    ``durations``: (6 + L, S), by :class:`OpKind`, that of R at level 0, then those of R at levels
    from 1 on; infinite for what a stage cannot. ``again``: (1 + L, S), those of R by the choice of
    :mod:`.remat`. ``owner``: (S, M), the rank of each pair. ``into_f[s, j]``: delay from the end of
    F(s-1, j) to F(s, j), 0 at stage 0. ``into_b[s, j]``: delay from the end of B(s+1, j) to B(s,
    j), 0 at the last stage. ``m_b``, ``m_w``: (S,). ``kept``: (2 + L, S), memory held between F and
    B by the choice for a microbatch: M_B where the stage cannot. ``limit``: (P,), infinite where
    there is none. Where microbatches are unlike all that is by stage has one more axis at the end,
    the microbatch: (6 + L, S, M), (S, M) and so on (:func:`of_kind`, :func:`of_pair`).
    """

    durations: FloatArray
    again: FloatArray
    owner: IntArray
    into_f: FloatArray
    into_b: FloatArray
    m_b: FloatArray
    m_w: FloatArray
    kept: FloatArray
    limit: FloatArray

    @classmethod
    def of(cls, problem: Problem) -> Costs:
        profile = problem.profile
        owner = problem.placement.matrix(profile.num_stages, problem.microbatches)
        into_f, into_b = np.zeros(owner.shape), np.zeros(owner.shape)
        delays = _delays(profile)
        columns = np.arange(problem.microbatches)
        for s in range(1, profile.num_stages):
            sizes = [one.activation_bytes for one in _microbatches(profile, s - 1)]
            matrices, which = np.stack([delays[size] for size in sizes]), columns % len(sizes)
            into_f[s] = matrices[which, owner[s - 1], owner[s]]
            into_b[s - 1] = matrices[which, owner[s], owner[s - 1]]
        tables = [_tables(profile, j) for j in range(problem.microbatches if profile.unlike else 1)]
        durations, again, kept, m_b, m_w = (
            np.ascontiguousarray(np.stack(each, axis=-1)) if profile.unlike else each[0]
            for each in zip(*tables, strict=True)
        )
        limit = np.array(problem.memory_limit, dtype=np.float64)
        return cls(durations, again, owner, into_f, into_b, m_b, m_w, kept, limit)

    def of_ops(self, packed: IntArray) -> FloatArray:
        """How long each of these packed ops takes."""
        kind, stage, microbatch = fields_of(packed)
        level = np.minimum(levels_of(packed) + 1, len(self.again) - 1)
        axes = self.durations.ndim
        again = self.again[(level, stage, microbatch)[:axes]]
        return np.where(kind == OpKind.R, again, self.durations[(kind, stage, microbatch)[:axes]])


def _tables(profile: Profile, microbatch: int) -> tuple[FloatArray, ...]:
    """``durations``, ``again``, ``kept``, ``m_b`` and ``m_w`` of one microbatch."""
    stages = [stage.at(microbatch) for stage in profile.stages]
    columns = ((s.t_f, s.t_b, s.t_w, s.fused, s.m_b, s.m_w) for s in stages)
    *times, m_b, m_w = (np.array(row, dtype=np.float64) for row in zip(*columns, strict=True))
    again, kept = _remat(profile, stages)
    move = _copy_times(profile, microbatch)
    return np.stack([*times, again[1], move, move, *again[2:]]), again, kept, m_b, m_w


def _copy_times(profile: Profile, microbatch: int) -> FloatArray:
    """Durations of O, and of L, by stage."""
    times = (profile.offload_time(s, microbatch) for s in range(profile.num_stages))
    return np.array([np.inf if time is None else time for time in times], dtype=np.float64)


def _remat(profile: Profile, stages: Sequence[StageProfile]) -> tuple[FloatArray, FloatArray]:
    """Time of R, (1 + L, S), and memory kept, (2 + L, S), by choice; at least one level."""
    levels = [stage.all_levels for stage in stages]
    rows = 1 + max([1, *map(len, levels)])
    again = np.full((rows, len(stages)), np.inf)
    kept = np.tile(np.array([stage.m_b for stage in stages], dtype=np.float64), (rows + 1, 1))
    again[0] = 0.0
    for s, stage in enumerate(stages):
        for k, level in enumerate(levels[s], 1):
            again[k, s], kept[k, s] = level.t_r, level.m_r
        if profile.host_link is not None and stage.m_o is not None:
            kept[-1, s] = stage.m_o
    return again, kept


def _microbatches(profile: Profile, stage: int) -> Sequence[StageProfile]:
    """The stage's microbatches where they are unlike, else one for all."""
    of = profile.stages[stage]
    return of.each or (of,)


def _delays(profile: Profile) -> dict[float | None, FloatArray]:
    """The delay from rank to rank for each size of activation that a stage sends."""
    every = (_microbatches(profile, s) for s in range(profile.num_stages))
    sizes = {one.activation_bytes for each in every for one in each}
    if profile.t_comm is not None:
        return dict.fromkeys(sizes, profile.delays(None))
    return {size: profile.delays(size) for size in sizes}
