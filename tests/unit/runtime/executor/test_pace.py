"""Paced ops take the profile's time at least, asleep for what they do not compute."""

from __future__ import annotations

import torch
from torch import nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import OpKind, Profile, Program, StageProfile
from pipeloom.runtime import Pipeline
from tests.support.by_hand import by_hand


def program() -> Program:
    profile = Profile((StageProfile(t_f=30.0, t_b=20.0, t_w=10.0),), 1)
    return compile_schedule(by_hand("0F0 0F1 0B0 0W0 0BW1", profile=profile))


def durations(*, pace: bool) -> dict[str, float]:
    pipeline = Pipeline(program(), [nn.Linear(2, 2)], loss=nn.functional.mse_loss, pace=pace)
    for _ in range(2):  # the first step pays for what torch sets up
        pipeline.step(torch.ones(4, 2), target=torch.zeros(4, 2))
    return {str(ran.op): ran.end - ran.start for ran in pipeline.trace()}


def test_ops_take_their_planned_time() -> None:
    taken = durations(pace=True)
    least = {OpKind.F: 30.0, OpKind.B: 20.0, OpKind.W: 10.0, OpKind.BW: 30.0}
    kinds = {"0F0": OpKind.F, "0F1": OpKind.F, "0B0": OpKind.B, "0W0": OpKind.W, "0BW1": OpKind.BW}
    assert taken.keys() == kinds.keys()
    assert all(taken[op] >= least[kind] for op, kind in kinds.items())
