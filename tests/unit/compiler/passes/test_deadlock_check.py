"""The proof's words: the cycle of waits that a program is caught in, or the order it breaks."""

from __future__ import annotations

import pytest

from pipeloom.compiler.passes.deadlock_check import prove
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.formats.program_json import parse_instruction
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule


def program(*rows: str) -> Program:
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * len(rows), len(rows))
    schedule = Schedule.of(Problem.linear(profile, 1), [[] for _ in rows], "none")
    instructions = tuple(tuple(map(parse_instruction, row.split("; "))) for row in rows)
    return Program(schedule, instructions, ((),) * len(rows))


def violation(*rows: str) -> str:
    with pytest.raises(InvalidScheduleError) as caught:
        prove(program(*rows))
    assert len(caught.value.violations) == 1
    return caught.value.violations[0]


def test_sends_of_both_ranks_meet_posted_receives() -> None:
    prove(
        program(
            "recv dy0.0 from 1 into 0; send x1.0 to 1; wait send x1.0; wait recv dy0.0",
            "recv x1.0 from 0 into 0; send dy0.0 to 0; wait send dy0.0; wait recv x1.0",
        )
    )


def test_two_ranks_that_send_and_wait_before_they_receive() -> None:
    assert violation(
        "send x1.0 to 1; wait send x1.0; recv dy0.0 from 1 into 0; wait recv dy0.0",
        "send dy0.0 to 0; wait send dy0.0; recv x1.0 from 0 into 0; wait recv x1.0",
    ) == (
        "deadlock: "
        "rank 0 stops at 'wait send x1.0' until rank 1 does 'recv x1.0 from 0 into 0'; "
        "rank 1 stops at 'wait send dy0.0' until rank 0 does 'recv dy0.0 from 1 into 0'"
    )


def test_ranks_that_only_wait_for_the_cycle_are_not_part_of_it() -> None:
    assert violation(
        "recv x1.0 from 1 into 0; wait recv x1.0",
        "recv x2.0 from 2 into 0; wait recv x2.0; send x1.0 to 0; send x3.0 to 2",
        "recv x3.0 from 1 into 0; wait recv x3.0; send x2.0 to 1",
    ) == (
        "deadlock: "
        "rank 1 stops at 'wait recv x2.0' until rank 2 does 'send x2.0 to 1'; "
        "rank 2 stops at 'wait recv x3.0' until rank 1 does 'send x3.0 to 2'"
    )


def test_a_wait_before_its_own_receive() -> None:
    assert violation("send x1.0 to 1", "wait recv x1.0; recv x1.0 from 0 into 0") == (
        "deadlock: rank 1 stops at 'wait recv x1.0' until rank 1 does 'recv x1.0 from 0 into 0'"
    )


def test_a_wait_for_what_no_rank_sends() -> None:
    assert violation("wait recv dy0.0", "1F0") == (
        "rank 0 waits forever at 'wait recv dy0.0': no rank has the other end of it"
    )


def test_reduces_in_different_orders() -> None:
    assert violation("reduce 0 1; reduce 0 1 2", "reduce 0 1 2; reduce 0 1") == (
        "deadlock: rank 0 stops at 'reduce 0 1' until rank 1 does 'reduce 0 1'; "
        "rank 1 stops at 'reduce 0 1 2' until rank 0 does 'reduce 0 1 2'"
    )


def test_receives_in_another_order_than_their_sends() -> None:
    assert violation(
        "send x1.0 to 1; send x1.1 to 1", "recv x1.1 from 0 into 0; recv x1.0 from 0 into 1"
    ) == ("channel 0 -> 1: message 0 is sent as x1.0 and received as x1.1")


def test_a_send_without_a_receive() -> None:
    assert violation("send x1.0 to 1", "1F0") == (
        "channel 0 -> 1: message 0 is sent as x1.0 and received as nothing"
    )
