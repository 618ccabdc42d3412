"""A problem's times, delays and sizes as arrays. No other module derives them from a problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..kernels import kernel
from ..model.ops import FloatArray, IntArray, fields_of
from ..model.problem import Problem
from ..model.profile import Profile, StageProfile


@kernel
def of_kind(table: FloatArray, row: int, stage: int, microbatch: int) -> float:
    """Return ``table[row, stage]``, or ``table[row, stage, microbatch]`` if microbatches differ.

    The number of axes is known when a kernel is compiled, so the branch costs nothing at run time.
    """
    if table.ndim == 2:
        return float(table[row, stage])
    return float(table[row, stage, microbatch])


@kernel
def of_pair(table: FloatArray, stage: int, microbatch: int) -> float:
    """Return ``table[stage]``, or ``table[stage, microbatch]`` if microbatches differ."""
    if table.ndim == 1:
        return float(table[stage])
    return float(table[stage, microbatch])


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Times and sizes of a problem of S stages, M microbatches and P ranks, as arrays.

    - ``durations``: (7, S), in ms, rows by :class:`OpKind`; infinite if the stage cannot run the
      op.
    - ``owner``: (S, M), the rank of each (stage, microbatch).
    - ``into_f[s, j]``: (S, M), delay in ms from the end of F(s-1, j) to F(s, j), 0 at stage 0.
    - ``into_b[s, j]``: (S, M), delay in ms from the end of B(s+1, j) to B(s, j), 0 at the last
      stage.
    - ``m_b``, ``m_w``: (S,), M_B and M_W of each stage.
    - ``kept``: (3, S), memory that a microbatch holds between F and B, with one row for each choice
      of :mod:`.remat` (stays, recomputed, offloaded); M_B if the stage does not have the choice.
    - ``limit``: (P,), the memory limit of each rank; infinite if there is none.

    If microbatches differ, ``durations``, ``m_b``, ``m_w`` and ``kept`` have the microbatch as an
    additional last axis: (7, S, M), (S, M) and so on. :func:`of_kind` and :func:`of_pair` read both
    forms.
    """

    durations: FloatArray
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
        durations, kept, m_b, m_w = (
            np.ascontiguousarray(np.stack(each, axis=-1) if profile.unlike else each[0])
            for each in zip(*tables, strict=True)
        )
        limit = np.array(problem.memory_limit, dtype=np.float64)
        return cls(durations, owner, into_f, into_b, m_b, m_w, kept, limit)

    def of_ops(self, packed: IntArray) -> FloatArray:
        """The duration in ms of each op in ``packed``, as if no op were in a pair.

        The result has the shape of ``packed``.
        """
        return np.asarray(self.durations[fields_of(packed)[: self.durations.ndim]])


def _tables(profile: Profile, microbatch: int) -> tuple[FloatArray, ...]:
    """The arrays ``durations``, ``kept``, ``m_b``, ``m_w`` of :class:`Costs` for one microbatch."""
    stages = [stage.at(microbatch) for stage in profile.stages]
    moves = [profile.offload_time(s, microbatch) for s in range(profile.num_stages)]
    columns = [
        (s.t_f, s.t_b, s.t_w, s.fused, s.t_r, move, move, s.m_b, s.m_w)
        for s, move in zip(stages, moves, strict=True)
    ]
    *times, m_b, m_w = np.array(columns, dtype=np.float64).T  # nan for None
    return np.nan_to_num(times, nan=np.inf, posinf=np.inf), _kept(profile, stages), m_b, m_w


def _kept(profile: Profile, stages: Sequence[StageProfile]) -> FloatArray:
    """Memory that a microbatch holds between F and B on each of S stages, (3, S).

    The first row is for activations that stay on the device, the second for activations that are
    recomputed, and the third for activations that are offloaded. Where a stage cannot be recomputed
    or offloaded, the row contains M_B.
    """
    able = profile.host_link is not None
    rows = [
        [s.m_b for s in stages],
        [s.m_b if s.t_r is None else s.kept for s in stages],
        [s.m_o if able and s.m_o is not None else s.m_b for s in stages],
    ]
    return np.array(rows, dtype=np.float64)


def _microbatches(profile: Profile, stage: int) -> Sequence[StageProfile]:
    """The profile of each microbatch on ``stage``; a single profile if microbatches are alike."""
    of = profile.stages[stage]
    return of.each or (of,)


def _delays(profile: Profile) -> dict[float | None, FloatArray]:
    """The delays in ms between ranks, (P, P), for each size of activations in the profile.

    A size is in bytes, or None for stages whose size is unknown.
    """
    every = (_microbatches(profile, s) for s in range(profile.num_stages))
    sizes = {one.activation_bytes for each in every for one in each}
    return {size: profile.delays(size) for size in sizes}
