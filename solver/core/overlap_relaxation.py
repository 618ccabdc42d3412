"""Relaxations that replace pairs (:mod:`pipeloom.ir.cost.overlap`) by shorter ops.

A pair is an F and a BW that a rank runs at the same time. The *saving* of a stage is the time that
a pair of its own F and BW saves; a pair of two stages saves at most the smaller of their savings.
Let the relaxed problem have no pairs and shorter ops (:func:`least_times`): T_W is reduced by the
stage's saving, and T_B by the part of the saving that exceeds T_W.

Claim: every schedule with pairs is a schedule of the relaxed problem, of no higher cost. Proof: a
pair takes at least the time of its F, B and W, minus the smaller of the two savings, which is at
most the saving of the BW's stage. So F, the shorter B and the shorter W fit into the time of the
pair one after the other. None of these ops starts before the pair or ends after it, so every op
that waits for one of them can keep its time, and no more memory is held. Hence each lower bound of
the relaxed problem holds for the original one.
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
    """The problem without pairs: no F may run at the same time as a BW on a rank."""
    return with_stages(problem, lambda stage: replace(stage, t_fb=None))


def least_times(problem: Problem) -> Problem:
    """A relaxation without pairs, in which B and W are shorter by the time that a pair saves.

    A pair is an F and a BW that run at the same time. The module has the proof.
    """
    return with_stages(problem, least_times_of) if overlap_saves(problem) else problem


def least_times_of(stage: StageProfile) -> StageProfile:
    """Return ``stage`` without pairs, with the shorter T_B and T_W of :func:`least_times`."""
    saving = max(0.0, stage.saving)
    t_w = max(0.0, stage.t_w - saving)
    t_b = max(0.0, stage.t_b - max(0.0, saving - stage.t_w))
    return replace(stage, t_b=t_b, t_w=t_w, t_fb=None)


def overlap_work(problem: Problem) -> float:
    """Lower bound on the work of the busiest rank if an F and a BW may run at the same time.

    Proof: a pair saves at most the saving of its BW's stage, and at most the duration of that BW,
    so each microbatch takes at least its times of :func:`least_times`. If each stage is on one
    rank, one microbatch saves nothing there: consider the rank's last F. All BW's of its microbatch
    on the rank, one per stage, run after that F, so no F runs at the same time as these BW's.
    """
    costs, least = Costs.of(problem), Costs.of(least_times(problem)).durations[:3].sum(axis=0)
    times = np.repeat(least[:, None], problem.microbatches, axis=1)
    if problem.placement.passing is Passing.ACTIVATIONS:
        times[:, -1] = costs.durations[:3].sum(axis=0)
    return float(np.bincount(costs.owner.ravel(), times.ravel()).max())
