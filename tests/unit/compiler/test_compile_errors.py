"""What the compiler refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.model.ops import parse_order
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.families import build_family
from tests.support.by_hand import by_hand

GOOD = ("0F0 0F1 0BW0 0BW1", "1F0 1B0 1W0 1F1 1BW1")


def schedule(*rows: str) -> Schedule:
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * 2, 2)
    return Schedule.of(Problem.linear(profile, 2), [parse_order(row) for row in rows], "by hand")


@pytest.mark.parametrize(
    ("rows", "violation"),
    [
        (("0F0 0F1 0BW0", GOOD[1]), "stage 0, microbatch 1: expected one F and either one BW or one B and one W, got 1 F, 0 B, 0 W, 0 BW"),  # noqa: E501
        (("0F0 0F1 0BW0 0BW1 0BW1", GOOD[1]), "stage 0, microbatch 1: .* got 1 F, 0 B, 0 W, 2 BW"),
        ((GOOD[0], "1F0 1B0 1F1 1BW1"), "stage 1, microbatch 0: .* got 1 F, 1 B, 0 W, 0 BW"),
        ((GOOD[0], "1F0 1BW0 1W0 1F1 1BW1"), "stage 1, microbatch 0: .* got 1 F, 0 B, 1 W, 1 BW"),
        ((GOOD[0] + " 1F0", "1B0 1W0 1F1 1BW1"), "rank 0: 1F0 does not belong there"),
        ((GOOD[0] + " 0F2", GOOD[1]), "rank 0: 0F2 does not belong there"),
        (("0F0 0BW1 0F1 0BW0", GOOD[1]), "rank 0 can never start 0BW1"),
        (GOOD[:1], "1 order for 2 ranks"),
    ],
)  # fmt: skip
def test_an_invalid_schedule(rows: tuple[str, ...], violation: str) -> None:
    with pytest.raises(InvalidScheduleError, match=violation):
        compile_schedule(schedule(*rows))


@pytest.mark.parametrize("group", [[0], [0, 0], [0, 2], [-1, 0], []])
def test_a_tied_group_that_is_none(group: list[int]) -> None:
    with pytest.raises(
        InputError, match=r"^tied\[1\]: expected two or more different stages of 0..1, got"
    ):
        compile_schedule(schedule(*GOOD), tied=[[0, 1], group])


def test_equal_groups_are_reduced_once() -> None:
    program = compile_schedule(schedule(*GOOD), tied=[[1, 0], [0, 1]])
    assert [str(item) for item in program.instructions[0]].count("reduce 0 1") == 1


def test_no_rank_steps_ahead_where_weights_travel() -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, weight_bytes=1.0),) * 2, 2, t_comm=0.1)
    plan = build_family("weipipe-interleave", profile, 2)
    with pytest.raises(
        InputError, match=r"^post_validation: expected a schedule that passes activ"
    ):
        compile_schedule(plan, post_validation=True)


def test_one_rank_has_nobody_to_wait_for() -> None:
    row = compile_schedule(by_hand("0F0 0BW0"), post_validation=True).instructions[0]
    assert list(map(str, row)) == ["0F0", "0BW0", "step 0"]


def test_a_transfer_leaves_the_rank_that_its_item_is_on() -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, weight_bytes=1.0),) * 3, 3, t_comm=0.1)
    plan = build_family("weipipe-interleave", profile, 3)
    compile_schedule(plan)
    again = replace(plan, transfers=(*plan.transfers, plan.transfers[-2]), timing=None)
    with pytest.raises(InvalidScheduleError, match=r"^transfers\[\d+\] .*, its copy is on rank \d"):
        compile_schedule(again)
    first = replace(plan.transfers[0], target=plan.transfers[0].source)
    itself = replace(plan, transfers=(first, *plan.transfers[1:]), timing=None)
    with pytest.raises(InvalidScheduleError, match=r"^transfers\[0\] .*: expected two ranks, got"):
        compile_schedule(itself)
