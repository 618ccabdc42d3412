"""A lower bound that holds for every number of stages a rank from some one on.

Of K P stages that go round the ranks each rank has some of the work, the busiest at least an even
share of it, and one microbatch passes K P - 1 boundaries there and back. More stages a rank divide
the same work and add boundaries, so what bounds K bounds all more than K. No order of ops costs
less, as in :mod:`pipeloom.solver.partition.cut_bounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.core.overlap_relaxation import least_times_of


def bound_from(given: Profile | LayeredProfile, chunks: int, microbatches: int) -> float:
    """No schedule of ``chunks`` or more stages a rank, stage s on rank s mod P, costs less."""
    if isinstance(given, Profile):
        parts, cluster = given.stages, given
    else:
        parts, cluster = given.layers, given.cluster
    parts = tuple(map(_least, parts))
    work = microbatches * sum(part.t_f + part.t_b + part.t_w for part in parts) / given.ranks
    way = sum(part.t_f + part.t_b for part in parts)
    return max(work, way + _delays(parts, cluster, chunks))


def _least(part: StageProfile) -> StageProfile:
    """The part with times that neither a pair nor a fused BW undercuts."""
    fused = min(part.fused, part.t_b + part.t_w)
    t_b = min(part.t_b, fused)
    return least_times_of(replace(part, t_b=t_b, t_w=fused - t_b, t_bw=None))


def _delays(parts: Sequence[StageProfile], cluster: Profile, chunks: int) -> float:
    """The least delays of one microbatch over all boundaries, there and back."""
    least = np.min([cluster.delays(size) for size in {p.activation_bytes for p in parts}], axis=0)
    owners = np.arange(chunks * cluster.ranks) % cluster.ranks
    there, back = least[owners[:-1], owners[1:]], least[owners[1:], owners[:-1]]
    return float(there.sum() + back.sum())
