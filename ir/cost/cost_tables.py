"""The cost model's numbers as arrays: the one place where a problem turns into delays and sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.ops import FloatArray, IntArray, OpKind, fields_of, levels_of
from ..model.problem import Problem
from ..model.profile import Profile


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Times and sizes of a problem of S stages, M microbatches and P ranks, as arrays.

    ``durations``: (6 + L, S), by :class:`OpKind`, that of R at level 0, then those of R at levels
    from 1 on; infinite for what a stage cannot. ``again``: (1 + L, S), those of R by the choice of
    :mod:`.remat`. ``owner``: (S, M), the rank of each pair. ``into_f[s, j]``: delay from the end of
    F(s-1, j) to F(s, j), 0 at stage 0. ``into_b[s, j]``: delay from the end of B(s+1, j) to B(s,
    j), 0 at the last stage. ``m_b``, ``m_w``: (S,). ``kept``: (2 + L, S), memory held between F and
    B by the choice for a microbatch: M_B where the stage cannot. ``limit``: (P,), infinite where
    there is none.
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
        stages = problem.profile.stages
        t_f, t_b, t_w = (
            np.array([getattr(s, key) for s in stages], dtype=np.float64)
            for key in ("t_f", "t_b", "t_w")
        )
        fused = np.array([s.fused for s in stages], dtype=np.float64)
        owner = problem.placement.matrix(len(stages), problem.microbatches)
        into_f, into_b = np.zeros(owner.shape), np.zeros(owner.shape)
        delays = _delays(problem.profile)
        for s in range(1, len(stages)):
            matrix = delays[stages[s - 1].activation_bytes]
            into_f[s] = matrix[owner[s - 1], owner[s]]
            into_b[s - 1] = matrix[owner[s], owner[s - 1]]
        again, kept = _remat(problem.profile)
        move = _copy_times(problem.profile)
        return cls(
            durations=np.stack([t_f, t_b, t_w, fused, again[1], move, move, *again[2:]]),
            again=again,
            owner=owner,
            into_f=into_f,
            into_b=into_b,
            m_b=np.array([s.m_b for s in stages], dtype=np.float64),
            m_w=np.array([s.m_w for s in stages], dtype=np.float64),
            kept=kept,
            limit=np.array(problem.memory_limit, dtype=np.float64),
        )

    def of_ops(self, packed: IntArray) -> FloatArray:
        """How long each of these packed ops takes."""
        kind, stage, _ = fields_of(packed)
        again = self.again[np.minimum(levels_of(packed) + 1, len(self.again) - 1), stage]
        return np.where(kind == OpKind.R, again, self.durations[kind, stage])


def _copy_times(profile: Profile) -> FloatArray:
    """Durations of O, and of L, by stage."""
    times = map(profile.offload_time, range(profile.num_stages))
    return np.array([np.inf if time is None else time for time in times], dtype=np.float64)


def _remat(profile: Profile) -> tuple[FloatArray, FloatArray]:
    """Time of R, (1 + L, S), and memory kept, (2 + L, S), by choice; at least one level."""
    stages = profile.stages
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


def _delays(profile: Profile) -> dict[float | None, FloatArray]:
    """The delay from rank to rank for each size of activation that a stage sends."""
    sizes = {stage.activation_bytes for stage in profile.stages}
    if profile.t_comm is not None:
        return dict.fromkeys(sizes, profile.delays(None))
    return {size: profile.delays(size) for size in sizes}
