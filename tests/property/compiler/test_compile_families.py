"""Every family compiles to a program that runs."""

from __future__ import annotations

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.formats import dump_program
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.program import verify_program
from pipeloom.solver.families import ASYNCHRONOUS, FAMILIES, build_family
from tests.support.families import fits
from tests.support.weight_machine import run_compiled


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ASYNCHRONOUS])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (2, 1), (3, 7), (4, 8), (4, 5)])
def test_every_synchronous_family_compiles(name: str, ranks: int, microbatches: int) -> None:
    stages = tuple(StageProfile(1.0, 1.0 + rank, 0.5) for rank in range(ranks))
    if not fits(name, ranks):
        pytest.skip("not with so many ranks")
    profile, family = Profile(stages, ranks, t_comm=0.2), FAMILIES[name]
    problem = family.problem(profile, microbatches, None, Objective.PERIOD)
    reason = family.supports(problem)
    if reason is not None:
        pytest.skip(reason)
    schedule = family.build(problem)
    run_compiled(schedule)


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (2, 1), (3, 7), (4, 8), (4, 5)])
def test_asynchronous_families_compile(ranks: int, microbatches: int) -> None:
    profile = Profile((StageProfile(1.0, 1.5, 0.5),) * ranks, ranks, t_comm=0.2)
    for name in ASYNCHRONOUS:
        program = compile_schedule(build_family(name, profile, microbatches))
        assert verify_program(dump_program(program)) == []
