"""Relaxations of forward/backward overlap (:mod:`pipeloom.ir.cost.overlap`) as shorter ops.

Let W of a stage take less by what its pair saves, and B where that is more than T_W. A pair takes
its F, B and W less the smaller of two stages' savings at least, and that of the BW's stage is no
smaller; so these three fit into the pair one after the other. None begins earlier or ends later
than the pair: all that waits for them may go on, and no more is held. So a schedule with pairs is
one without them of the problem with these times (:func:`least_times`), of no higher cost, and what
bounds those bounds it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import StageProfile

from .relaxations import with_stages


def without_overlap(problem: Problem) -> Problem:
    """The same where no pair saves anything."""
    return with_stages(problem, lambda stage: replace(stage, t_fb=None))


def least_times(problem: Problem) -> Problem:
    """The problem whose schedules without pairs are no more costly: see above."""
    return with_stages(problem, least_times_of) if overlap_saves(problem) else problem


def least_times_of(stage: StageProfile) -> StageProfile:
    """The stage with the times of :func:`least_times`."""
    saving = max(0.0, stage.saving)
    t_w = max(0.0, stage.t_w - saving)
    t_b = max(0.0, stage.t_b - max(0.0, saving - stage.t_w))
    return replace(stage, t_b=t_b, t_w=t_w, t_fb=None)


def overlap_work(problem: Problem) -> float:
    """The work of the busiest rank, at least, where F's and BW's run at once.

    Proof: a pair saves no more than that of its BW's stage does, nor than that BW takes. Where each
    stage is on one rank, the microbatch of a rank's last F has all its BW's there behind it, one of
    each stage, which no F runs beside.
    """
    costs, least = Costs.of(problem), Costs.of(least_times(problem)).durations[:3].sum(axis=0)
    times = np.repeat(least[:, None], problem.microbatches, axis=1)
    if problem.placement.passing is Passing.ACTIVATIONS:
        times[:, -1] = costs.durations[:3].sum(axis=0)
    return float(np.bincount(costs.owner.ravel(), times.ravel()).max())
