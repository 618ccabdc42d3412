"""Programs whose forwards are recomputed at a level: whole ones run, parts as graphs alone."""

from __future__ import annotations

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import parse_order
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Level, Profile, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule
from pipeloom.runtime.rank.checks import check_program
from pipeloom.runtime.rank.options import PipelineOptions

LEVELS = Level("attention", 0.5, 6.0), Level("full", 2.0, 1.0)


def program(order: str, first: Level = LEVELS[0]) -> Program:
    stage = StageProfile(2.0, 3.0, 1.0, m_b=10.0, levels=(first, LEVELS[1]))
    problem = Problem(Profile((stage,), 1), 1, Placement.linear(1), (10.0,))
    return compile_schedule(Schedule.of(problem, [parse_order(order)], ""))


def test_whole_forwards_run() -> None:
    check_program(program("0F0 0R0@1 0B0 0W0"), PipelineOptions(verify=False))


@pytest.mark.parametrize("verify", [False, True])
def test_a_level_that_no_graph_has_is_refused(verify: bool) -> None:
    with pytest.raises(InputError) as caught:
        check_program(program("0F0 0R0 0B0 0W0"), PipelineOptions(verify=verify))
    assert str(caught.value) == (
        "program: 0R0: expected a level that `pipeloom profile --levels` has found, such as 41%, "
        "or full, got 'attention'"
    )


def test_a_part_of_a_forward_needs_a_graph() -> None:
    found = program("0F0 0R0 0B0 0W0", Level("41%", 0.5, 6.0))
    check_program(found, PipelineOptions(verify=False, stages_as="aten"))
    with pytest.raises(InputError) as caught:
        check_program(found, PipelineOptions(verify=False))
    assert str(caught.value) == (
        "program: 0R0 recomputes a part of a forward (level '41%'): expected stages as graphs "
        "(--stages-as aten or inductor), got eager"
    )


@pytest.mark.parametrize("name", ["0%", "100%", "07%", "4.5%", "%", "41 %", "41%%"])
def test_what_is_no_share_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="expected a level that `pipeloom profile --levels`"):
        check_program(
            program("0F0 0R0 0B0 0W0", Level(name, 0.5, 6.0)), PipelineOptions(stages_as="aten")
        )
