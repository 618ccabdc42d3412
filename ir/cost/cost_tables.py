"""The cost model's numbers as arrays: the one place where a problem turns into delays and sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.ops import FloatArray, IntArray, fields_of
from ..model.problem import Problem
from ..model.profile import Profile


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """Times and sizes of a problem of S stages, M microbatches and P ranks, as arrays.

    ``durations``: (7, S), by :class:`OpKind`; infinite for what a stage cannot. ``owner``: (S, M),
    the rank of each pair. ``into_f[s, j]``: delay from the end of F(s-1, j) to F(s, j), 0 at stage
    0. ``into_b[s, j]``: delay from the end of B(s+1, j) to B(s, j), 0 at the last stage. ``m_b``,
    ``m_w``: (S,). ``kept``: (3, S), memory held between F and B of a microbatch that stays, is
    recomputed or offloaded: M_B where the stage cannot. ``limit``: (P,), infinite where there is
    none.
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
        return cls(
            durations=np.stack([t_f, t_b, t_w, fused, *_remat_times(problem.profile)]),
            owner=owner,
            into_f=into_f,
            into_b=into_b,
            m_b=np.array([s.m_b for s in stages], dtype=np.float64),
            m_w=np.array([s.m_w for s in stages], dtype=np.float64),
            kept=_kept(problem.profile),
            limit=np.array(problem.memory_limit, dtype=np.float64),
        )

    def of_ops(self, packed: IntArray) -> FloatArray:
        """How long each of these packed ops takes."""
        result: FloatArray = self.durations[fields_of(packed)[:2]]
        return result


def _remat_times(profile: Profile) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Durations of R, O and L, each by stage."""
    again = [np.inf if stage.t_r is None else stage.t_r for stage in profile.stages]
    if profile.host_link is None:
        move = np.full(len(again), np.inf)
    else:
        times = map(profile.offload_time, range(profile.num_stages))
        move = np.array([np.inf if time is None else time for time in times])
    return np.array(again), move, move


def _kept(profile: Profile) -> FloatArray:
    stages = profile.stages
    whole = [s.m_b for s in stages]
    again = [s.m_b if s.t_r is None or s.m_r is None else s.m_r for s in stages]
    out = [s.m_b if profile.host_link is None or s.m_o is None else s.m_o for s in stages]
    return np.array([whole, again, out], dtype=np.float64)


def _delays(profile: Profile) -> dict[float | None, FloatArray]:
    """The delay from rank to rank for each size of activation that a stage sends."""
    sizes = {stage.activation_bytes for stage in profile.stages}
    if profile.t_comm is not None:
        return dict.fromkeys(sizes, profile.delays(None))
    return {size: profile.delays(size) for size in sizes}
