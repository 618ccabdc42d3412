"""Plans for a job that runs are ones that its stages can run."""

from dataclasses import replace
from functools import partial

import pytest

import pipeloom
from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Level, Profile, StageProfile
from pipeloom.planner.tuning import replan
from pipeloom.planner.tuning.replan import Replanner
from pipeloom.solver.families import build_family
from pipeloom.solver.optimize import optimize


@pytest.mark.parametrize("graphs", [False, True])
def test_a_part_of_a_forward_is_recomputed_by_graphs_alone(
    graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # by work, as in seconds a busy machine finds less; at this limit parts pay from the first on
    monkeypatch.setattr(replan, "optimize", partial(optimize, work_limit=0.1))
    levels = Level("40%", 0.1, 0.4), Level("full", 1.0, 0.1)
    stage = StageProfile(1.0, 1.0, 1.0, levels=levels)
    last = replace(stage, levels=())
    profile = Profile((stage, stage, last), 3)
    limited = replace(Problem.linear(profile, 6), memory_limit=(1.9, 1.6, 1.0))
    slow = build_family("gpipe", profile, 6)
    program = replace(compile_schedule(slow), schedule=replace(slow, problem=limited, timing=None))
    found = Replanner(program, (), 100.0, 0, graphs)([timed(program.schedule)])
    assert found is not None
    assert bool(found.schedule.parts_recomputed) is graphs
    whole = (replace(stage, levels=levels[1:]),) * 2
    assert graphs or found.schedule.problem.profile.stages[:2] == whole


def test_unlike_microbatches_are_refused_before_training() -> None:
    stage = StageProfile.of([StageProfile(1.0, 1.0, 1.0), StageProfile(2.0, 1.0, 1.0)])
    program = compile_schedule(build_family("1f1b", Profile((stage,) * 2, 2), 2))
    with pytest.raises(InputError, match="t_f: expected one number for tune, got a list"):
        pipeloom.tune(program, "examples.gpt:small", steps=2)
