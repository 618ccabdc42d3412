"""A profile from the steps of a run: what its ops took where they really ran."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule

from ..inputs.problem_setup import check_alike
from ..measured.rescaled import with_times

Times = dict[tuple[OpKind, int], float]
"""By kind and stage."""


def reprofile(traces: Sequence[Schedule]) -> Profile:
    """The traces' profile with each stage's T_F, T_B, T_W and T_R as the medians of what was
    measured.

    ``traces``: timed schedules of one problem, in milliseconds, as ``Pipeline.gather_trace`` gives
    them. Where a stage ran fused BWs alone, T_B and T_W have the share of it that they had in the
    old profile (half each where that was 0). Where none was recomputed T_R is to T_F as
    it was, and so is T_FB to all three. Sizes, limits and links stay as they are.
    Raises InputError for microbatches that are unlike.
    """
    profile, took = traces[0].problem.profile, _medians(traces)
    check_alike(profile, "profile: stages", "medians of what was measured")
    stages = tuple(_stage(old, s, took) for s, old in enumerate(profile.stages))
    return replace(profile, stages=stages)


def _medians(traces: Sequence[Schedule]) -> Times:
    samples: defaultdict[tuple[OpKind, int], list[float]] = defaultdict(list)
    for trace in traces:
        for op, time in trace.op_times():
            samples[op.kind, op.stage].append(time)
    return {key: statistics.median(times) for key, times in samples.items()}


def _stage(old: StageProfile, stage: int, took: Times) -> StageProfile:
    t_b, t_w = took.get((OpKind.B, stage)), took.get((OpKind.W, stage))
    if t_b is None or t_w is None:
        both, known = took[OpKind.BW, stage], old.t_b + old.t_w
        both *= known / old.fused if old.fused > 0 else 1.0
        t_b = both * (old.t_b / known if known > 0 else 0.5)
        t_w = both - t_b
    found = with_times(old, took[OpKind.F, stage], t_b, t_w)
    return replace(
        found,
        t_r=None if found.t_r is None else took.get((OpKind.R, stage), found.t_r),
        t_bw=None if found.t_bw is None else took.get((OpKind.BW, stage), found.t_bw),
    )
