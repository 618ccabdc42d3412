"""Relaxations that drop recomputation and offload, or make them cheaper.

*Remat* is short for recomputation and offload (:mod:`pipeloom.ir.cost.remat`). They are possible if
the profile has the times they need and only activations are passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray, OpKind
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile

from .tolerances import ROUNDING

Mask = npt.NDArray[np.bool_]


def with_stages(
    problem: Problem, change: Callable[..., StageProfile], *columns: Iterable[Any]
) -> Problem:
    """The problem with each stage replaced by ``change(stage, *values)``.

    ``columns``: for each further argument of ``change``, an iterable with one value per stage. If
    microbatches are unlike, ``change`` is called once for each microbatch of a stage, with a
    profile of the stage in which the times and sizes are those of this microbatch.
    """
    rows = zip(problem.profile.stages, *columns, strict=True)
    stages = tuple(s.changed(lambda one, own=own: change(one, *own)) for s, *own in rows)
    return replace(problem, profile=replace(problem.profile, stages=stages))


def recomputable(problem: Problem) -> Mask:
    """A mask of the stages that may be recomputed, shape (S,)."""
    return _possible(problem, OpKind.R)


def offloadable(problem: Problem) -> Mask:
    """A mask of the stages that may be offloaded, shape (S,)."""
    return _possible(problem, OpKind.O)


def _possible(problem: Problem, kind: OpKind) -> Mask:
    if problem.placement.passing is not Passing.ACTIVATIONS:
        return np.zeros(problem.stages, dtype=np.bool_)
    finite = np.isfinite(Costs.of(problem).durations[kind])
    return np.asarray(finite.reshape(problem.stages, -1).all(axis=1))


def fusible(problem: Problem) -> Mask:
    """A mask of the stages on which a BW is faster than B and W one after the other, shape (S,)."""
    if problem.placement.passing is not Passing.ACTIVATIONS:
        return np.zeros(problem.stages, dtype=np.bool_)
    every = [stage.each or (stage,) for stage in problem.profile.stages]
    return np.array([any(one.fused < one.t_b + one.t_w for one in each) for each in every])


def has_remat(problem: Problem) -> bool:
    """Whether some stage may be recomputed or offloaded, or runs a BW faster than B and W."""
    return bool((recomputable(problem) | offloadable(problem) | fusible(problem)).any())


def without_recomputing(profile: Profile) -> Profile:
    return profile.changed(lambda stage: replace(stage, t_r=None, m_r=None))


def without_offloading(profile: Profile) -> Profile:
    bare = profile.changed(lambda stage: replace(stage, m_o=None, offload_bytes=None))
    return replace(bare, host_link=None)


def recomputing(problem: Problem) -> Problem:
    """The problem, in which stages that may be recomputed may not be offloaded."""

    def change(stage: StageProfile) -> StageProfile:
        return replace(stage, m_o=None, offload_bytes=None) if stage.t_r is not None else stage

    return with_stages(problem, change)


def plain(problem: Problem) -> Problem:
    """The problem without recomputation and offload, and with BW's that take T_B + T_W."""
    profile = without_offloading(without_recomputing(problem.profile))
    return with_stages(replace(problem, profile=profile), lambda stage: replace(stage, t_bw=None))


def unfused(problem: Problem) -> Problem:
    """A relaxation of ``problem`` in which BW is not faster than B and W.

    On stages with T_BW < T_B + T_W, B takes min(T_B, T_BW) and W the rest of T_BW. Proof: split
    each BW into this B and W. The gradient of B leaves earlier and W ends when BW did, so the cost
    is no higher. B's and W's that already were two ops take no longer than before.
    """

    def change(stage: StageProfile) -> StageProfile:
        t_b, t_w = stage.t_b, stage.t_w
        if stage.fused < t_b + t_w:
            t_b, t_w = min(t_b, stage.fused), max(0.0, stage.fused - t_b)
        return replace(stage, t_b=t_b, t_w=t_w, t_bw=None)

    return with_stages(problem, change)


def least_kept(problem: Problem) -> FloatArray:
    """The minimum memory that a microbatch holds on each stage between F and B, shape (S,).

    It is the minimum over the choices for a microbatch: M_B if it stays, less if it is recomputed
    or offloaded. At least one optimal schedule never holds less than the result.

    An exception is a stage that has a rank of its own and cannot be recomputed, if M_B plus the
    minimum exceeds the rank's limit: there the result is M_B. Proof: while a microbatch is
    offloaded and holds the minimum, no F or B of another one has memory for its M_B. So the memory
    held can only fall until the microbatch is loaded back, and offload lets no other op run
    earlier. Removing its O and L delays no op, and memory is still sufficient.

    If microbatches are unlike, the shape is (S, M).
    """
    costs, owners = Costs.of(problem), problem.placement.owners
    if problem.placement.passing is not Passing.ACTIVATIONS:
        return costs.m_b
    least = costs.kept.min(axis=0)
    alone = np.array([owners.count(rank) == 1 for rank in owners]) & ~recomputable(problem)
    limit = costs.limit[list(owners)] * (1 + ROUNDING)
    stays = np.where(alone, limit, np.inf) < (costs.m_b + least).T
    return np.asarray(np.where(stays.T, costs.m_b, least))


def relaxed(problem: Problem) -> Problem:
    """A relaxation without recomputation and offload: its optimum is at most that of ``problem``.

    M_B is replaced by :func:`least_kept`, M_W by the smaller of M_W and that, and times by those of
    :func:`unfused`. Proof: remove all R, O and L from a schedule of ``problem`` and keep the times
    of all other ops. Ranks are still free when ops run, and inputs arrive as before. Every
    microbatch held at least :func:`least_kept` from F to B, whatever was chosen for it, so no rank
    holds more than before. This is a schedule of the relaxed problem with the same cost.
    """

    def change(stage: StageProfile, m_b: float) -> StageProfile:
        return replace(stage, m_b=m_b, m_w=min(stage.m_w, m_b))

    return with_stages(plain(unfused(problem)), change, least_kept(problem).tolist())


def relaxed_at_backwards(problem: Problem) -> Problem:
    """A second relaxation without remat: M_B is :func:`least_kept`, M_W is 0, limits are reduced.

    The limit of each rank is reduced by the minimum over its stages of M_B - :func:`least_kept`.
    Proof: when a B starts, its microbatch holds M_B, and each other microbatch between F and B at
    least :func:`least_kept`. So the sum of :func:`least_kept` over all of them, this one included,
    is at most the limit minus M_B - :func:`least_kept` of this stage. The same holds at any other
    time: microbatches that are between F and B at that time are still between F and B when the
    rank's next B starts.
    """
    least = least_kept(problem)
    bare = plain(unfused(problem))
    rest = Costs.of(problem).m_b - least
    own = map(problem.placement.stages_of, range(problem.ranks))
    free = [min(rest[list(stages)].tolist(), default=0.0) for stages in own]
    # the tolerance is relative to the whole limit, so it is added before the reduction
    whole = np.array(problem.memory_limit) * (1 + ROUNDING)
    limit = tuple(np.maximum(0.0, whole - free).tolist())
    held = with_stages(bare, lambda stage, m_b: replace(stage, m_b=m_b, m_w=0.0), least.tolist())
    return replace(held, memory_limit=limit)
