"""Plans for a job that runs are ones that its stages can run."""

import pytest

import pipeloom
from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.families import build_family


def test_unlike_microbatches_are_refused_before_training() -> None:
    stage = StageProfile.of([StageProfile(1.0, 1.0, 1.0), StageProfile(2.0, 1.0, 1.0)])
    program = compile_schedule(build_family("1f1b", Profile((stage,) * 2, 2), 2))
    with pytest.raises(InputError, match="t_f: expected one number for tune, got a list"):
        pipeloom.tune(program, "examples.gpt:small", steps=2)
