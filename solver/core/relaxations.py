"""Relaxations that drop or cheapen recomputation and offload, *remat* in short
(:mod:`pipeloom.ir.cost.remat`).

Both are possible where a profile has their times, and activations alone are passed.
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
    """The problem with ``change`` of each stage, given the stage's value of each column too; the
    same of every microbatch where they are unlike."""
    rows = zip(problem.profile.stages, *columns, strict=True)
    stages = tuple(s.changed(lambda one, own=own: change(one, *own)) for s, *own in rows)
    return replace(problem, profile=replace(problem.profile, stages=stages))


def recomputable(problem: Problem) -> Mask:
    """The stages that may be recomputed, shape (S,)."""
    return _possible(problem, OpKind.R)


def offloadable(problem: Problem) -> Mask:
    """The stages that may be offloaded, shape (S,)."""
    return _possible(problem, OpKind.O)


def _possible(problem: Problem, kind: OpKind) -> Mask:
    if problem.placement.passing is not Passing.ACTIVATIONS:
        return np.zeros(problem.stages, dtype=np.bool_)
    finite = np.isfinite(Costs.of(problem).durations[kind])
    return np.asarray(finite.reshape(problem.stages, -1).all(axis=1))


def fusible(problem: Problem) -> Mask:
    """The stages whose B and W take less as one op, shape (S,)."""
    if problem.placement.passing is not Passing.ACTIVATIONS:
        return np.zeros(problem.stages, dtype=np.bool_)
    every = [stage.each or (stage,) for stage in problem.profile.stages]
    return np.array([any(one.fused < one.t_b + one.t_w for one in each) for each in every])


def has_remat(problem: Problem) -> bool:
    return bool((recomputable(problem) | offloadable(problem) | fusible(problem)).any())


def without_recomputing(profile: Profile) -> Profile:
    return profile.changed(lambda stage: replace(stage, t_r=None, m_r=None))


def without_offloading(profile: Profile) -> Profile:
    bare = profile.changed(lambda stage: replace(stage, m_o=None, offload_bytes=None))
    return replace(bare, host_link=None)


def recomputing(problem: Problem) -> Problem:
    """The same where no stage that may be recomputed may be offloaded."""

    def change(stage: StageProfile) -> StageProfile:
        return replace(stage, m_o=None, offload_bytes=None) if stage.t_r is not None else stage

    return with_stages(problem, change)


def plain(problem: Problem) -> Problem:
    """The same without remat: a fused BW takes T_B + T_W."""
    profile = without_offloading(without_recomputing(problem.profile))
    return with_stages(replace(problem, profile=profile), lambda stage: replace(stage, t_bw=None))


def unfused(problem: Problem) -> Problem:
    """A relaxation of ``problem`` in which no BW takes less than its B and W.

    Where BW takes less, B takes no longer than that and W what is left of it. Split any BW so: the
    B leaves its gradient earlier and the W ends with the BW, so that there is a schedule of the
    same cost. The B's and W's apart take no longer than they did.
    """

    def change(stage: StageProfile) -> StageProfile:
        t_b, t_w = stage.t_b, stage.t_w
        if stage.fused < t_b + t_w:
            t_b, t_w = min(t_b, stage.fused), max(0.0, stage.fused - t_b)
        return replace(stage, t_b=t_b, t_w=t_w, t_bw=None)

    return with_stages(problem, change)


def least_kept(problem: Problem) -> FloatArray:
    """The least that a microbatch holds of each stage in some best schedule while it waits for its
    B, shape (S,).

    On a rank with one stage, which is not recomputed, that is M_B where M_B and the least exceed
    the limit: while a microbatch is out, no other's F or B has room for its M_B, so that the memory
    held only falls until it is back. Without its O and L no op comes later, and all fits.
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
    """A relaxation without remat: its best schedule costs no more than any of ``problem``.

    M_B is :func:`least_kept`, and M_W no more than that. Take any schedule of ``problem`` and leave
    out its R's, O's and L's, all other ops at their times: ranks are free where ops ran, inputs
    come as they did, and every microbatch holds no more than before, as it held at least that much
    from F to B whatever became of it. So it is a schedule of the relaxed problem with the same
    cost. Times are those of :func:`unfused`.
    """

    def change(stage: StageProfile, m_b: float) -> StageProfile:
        return replace(stage, m_b=m_b, m_w=min(stage.m_w, m_b))

    return with_stages(plain(unfused(problem)), change, least_kept(problem).tolist())


def relaxed_at_backwards(problem: Problem) -> Problem:
    """Another relaxation: M_B is :func:`least_kept`, M_W nothing, and each rank's limit is less.

    At the start of a B its own M_B is held, and :func:`least_kept` of all others whose F has run
    and whose B has not. So these and its own together leave free what its M_B is more than what is
    least kept of it, on the rank's stage where that is least. That holds at any other time too:
    those between F and B then are still there when the rank's next B starts.
    """
    least = least_kept(problem)
    bare = plain(unfused(problem))
    rest = Costs.of(problem).m_b - least
    own = map(problem.placement.stages_of, range(problem.ranks))
    free = [min(rest[list(stages)].tolist(), default=0.0) for stages in own]
    whole = np.array(problem.memory_limit) * (1 + ROUNDING)  # of what is left that would be less
    limit = tuple(np.maximum(0.0, whole - free).tolist())
    held = with_stages(bare, lambda stage, m_b: replace(stage, m_b=m_b, m_w=0.0), least.tolist())
    return replace(held, memory_limit=limit)
