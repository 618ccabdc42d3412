"""Unlike microbatches: checks, and problems in which all microbatches are equal instead.

Microbatches are *unlike* if the profile has lists of times or sizes, with a number for each
microbatch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import StageProfile

from .relaxations import fusible, offloadable, recomputable

_LEAST = (
    *("t_f", "t_b", "t_w", "t_bw", "t_r", "m_b", "m_w", "m_r", "m_o"),
    *("activation_bytes", "offload_bytes"),
)
_WHY = "where microbatches are unlike (lists of one number per microbatch)"


def check_planned(problem: Problem) -> None:
    """Raise InputError if microbatches are unlike and the problem needs equal ones.

    It does with recomputation, offload, fused backwards (BW faster than B and W), pairs (an F and a
    BW at the same time), or mixed passing of activations and weights.
    """
    if not problem.profile.unlike:
        return
    if problem.placement.passing is Passing.MIXED:
        raise InputError(f"passing: expected activations or weights {_WHY}")
    keys = {"t_r": recomputable, "m_o": offloadable, "t_bw": fusible}
    for key, possible in keys.items():
        stages = np.flatnonzero(possible(problem)).tolist()
        if stages:
            raise InputError(f"stages[{stages[0]}]: {key}: expected none {_WHY}")
    check_unpaired(problem)


def check_unpaired(problem: Problem) -> None:
    """Raise InputError if microbatches are unlike and the profile allows pairs.

    A profile allows pairs if some stage has a time ``t_fb``.
    """
    known = [s for s, stage in enumerate(problem.profile.stages) if stage.t_fb is not None]
    if known and problem.profile.unlike:
        raise InputError(f"stages[{known[0]}]: t_fb: expected none {_WHY}")


def typical(problem: Problem) -> Problem:
    """The problem with each time and size replaced by its mean over all microbatches."""
    return _alike(problem, lambda stage: stage)


def least(problem: Problem) -> Problem:
    """A relaxation in which each time and size of a stage is its minimum over all microbatches.

    Returns ``problem`` itself if its microbatches are equal already. Proof: in a schedule of
    ``problem``, keep all starts and let ops and messages end earlier. Inputs arrive no later, ranks
    are free no later, and no rank holds more. So, whatever the schedule recomputes, offloads or
    fuses, it becomes a schedule of the relaxed problem of no higher cost.
    """
    return _alike(problem, _least)


def _alike(problem: Problem, change: Callable[[StageProfile], StageProfile]) -> Problem:
    if not problem.profile.unlike:
        return problem
    stages = tuple(replace(change(stage), each=()) for stage in problem.profile.stages)
    return replace(problem, profile=replace(problem.profile, stages=stages))


def _least(stage: StageProfile) -> StageProfile:
    lowest: dict[str, Any] = {
        key: min(
            (getattr(one, key) for one in stage.each if getattr(one, key) is not None), default=None
        )
        for key in _LEAST
    }
    if stage.each and stage.m_o is not None:
        lowest["offload_bytes"] = min(one.moved for one in stage.each)
    return replace(stage, **lowest) if stage.each else stage
