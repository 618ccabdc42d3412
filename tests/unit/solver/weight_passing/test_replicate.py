"""Stages that stay on every rank that runs them."""

from __future__ import annotations

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.memory_footprint import footprint
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.transfers import holders, owned
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import build_family
from pipeloom.solver.weight_passing.replicate import replicate

STAGE = StageProfile(1.0, 1.0, 1.0, weight_bytes=5.0, grad_bytes=7.0, optimizer_bytes=11.0)
PROFILE = Profile((STAGE,) * 3, 3)


def test_every_rank_that_runs_it_has_and_steps_it() -> None:
    schedule = build_family("weipipe-interleave", PROFILE, 3)
    changed = replicate(schedule, [0])
    assert holders(schedule) == ((0,), (1,), (2,))
    assert holders(changed) == ((0, 1, 2), (1,), (2,))
    assert owned(changed) == ((0,), (0, 1), (0, 2))
    assert {t.stage for t in changed.transfers} == {1, 2}
    assert verify_schedule(dump_schedule(changed)) == []
    memory = footprint(changed)
    assert memory.weights == (5.0, 10.0, 10.0)
    assert memory.optimizer == (11.0, 22.0, 22.0)


def test_ends_that_are_tied_and_replicated_are_summed_once_and_their_rest_too() -> None:
    schedule = replicate(build_family("weipipe-interleave", PROFILE, 3), [0, 2])
    program = compile_schedule(schedule, tied=[(0, 2)])
    for row in program.instructions:
        reduces = [str(item) for item in row if str(item).startswith("reduce")]
        assert reduces == ["reduce 0", "reduce 0 2", "reduce 2"]
