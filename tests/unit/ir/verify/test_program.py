"""The program verifier: what is valid passes, and each kind of breach is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.program_json import dump_program
from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule, Transfer, TransferKind
from pipeloom.ir.verify.program import verify_program
from pipeloom.solver.families import build_family
from tests.support.by_hand import UNIT, by_hand

Document = dict[str, Any]


def document(
    schedule: Schedule, instructions: list[str], buffers: list[str], *edits: tuple[int, str, str]
) -> Document:
    """A program of one text a rank; ``edits`` (rank, old, new) each change one line or more."""
    texts = list(instructions)
    for rank, old, new in edits:
        assert texts[rank].count(old) == 1, f"{old!r} is not once in rank {rank}"
        texts[rank] = texts[rank].replace(old, new)
    return {
        "format": "pipeloom.program",
        "version": 1,
        "schedule": dump_schedule(schedule),
        "instructions": [
            [line.strip() for line in text.splitlines() if line.strip()] for text in texts
        ],
        "buffers": [text.split() for text in buffers],
    }


# two ranks, stages apart: activations travel --------------------------------------------------

ORDER = ("0F0 0F1 0B0 0W0 0B1 0W1", "1F0 1B0 1F1 1B1 1W0 1W1")
RANK0 = """
    recv dy0.0 from 1 into 0
    0F0
    send x1.0 to 1
    0F1
    send x1.1 to 1
    wait recv dy0.0
    0B0
    0W0
    free dy0.0
    recv dy0.1 from 1 into 0
    wait recv dy0.1
    0B1
    0W1
    free dy0.1
    wait send x1.0
    wait send x1.1
    step 0
"""
RANK1 = """
    recv x1.0 from 0 into 0
    recv x1.1 from 0 into 1
    wait recv x1.0
    1F0
    1B0
    send dy0.0 to 0
    wait recv x1.1
    1F1
    1B1
    send dy0.1 to 0
    1W0
    free x1.0
    1W1
    free x1.1
    wait send dy0.0
    wait send dy0.1
    step 1
"""


def two_stages(
    *edits: tuple[int, str, str], buffers: tuple[str, str] = ("dy0", "x1 x1")
) -> Document:
    schedule = by_hand(*ORDER, profile=Profile((UNIT,) * 2, 2, t_comm=0.5))
    return document(schedule, [RANK0, RANK1], list(buffers), *edits)


def test_a_valid_program_has_no_violations() -> None:
    assert verify_program(two_stages()) == []


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        # computes are the schedule's
        ([(1, "1W1\n", "\n")], "rank 1 never runs 1W1"),
        ([(1, "1W0\n", "1W0\n1W0\n")], "rank 1 instruction 11 (1W0): the schedule has 1W1 as op 5"),
        ([(0, "0W1\n", "0W1\n0W1\n")], "(0W1): the schedule has nothing more as op 6 of this rank"),
        ([(0, "0B0\n    0W0", "0W0\n0B0")], "(0W0): the schedule has 0B0 as op 2 of this rank"),
        ([(0, "0B0\n    0W0", "0W0\n0B0")], "(0W0): runs before 0B0"),
        ([(1, "1F0\n    1B0", "1B0\n1F0")], "(1B0): runs before 1F0"),
        # inputs are there
        ([(1, "wait recv x1.0\n", "\n")], "(1F0): its input x1.0 is not there: not waited for"),
        ([(1, "wait recv x1.0\n", "\n")], "rank 1 never waits for its receive of x1.0"),
        ([(0, "recv dy0.1 from 1 into 0\n    wait recv dy0.1", "")],
         "(0B1): its input dy0.1 is not there: never received before"),
        ([(0, "recv dy0.1 from 1 into 0\n    wait recv dy0.1", "")],
         "dy0.1 is never received by rank 0: it goes from rank 1 to 0"),
        # x and dy live until the weight gradient has read them
        ([(1, "1W0\n    free x1.0", "free x1.0\n1W0")],
         "(free x1.0): freed before the weight gradient of stage 1, microbatch 0 has read it"),
        ([(1, "1W0\n    free x1.0", "free x1.0\n1W0")],
         "(1W0): its input x1.0 is not there: freed or overwritten"),
        ([(0, "0W0\n    free dy0.0", "free dy0.0\n0W0")],
         "(free dy0.0): freed before the weight gradient of stage 0, microbatch 0 has read it"),
        ([(0, "    free dy0.1", "free dy0.1\nfree dy0.1")], "(free dy0.1): it is in no buffer"),
        ([(0, "    free dy0.1", "")], "rank 0 never frees dy0.1"),
        # buffers
        ([(1, "x1.1 from 0 into 1", "x1.1 from 0 into 0")],
         "rank 1 instruction 1 (recv x1.1 from 0 into 0): overwrites buffer 0, which holds x1.0"),
        ([(0, "0W0\n    free dy0.0\n    recv dy0.1 from 1 into 0",
           "recv dy0.1 from 1 into 0\n0W0\nfree dy0.0")],
         "(recv dy0.1 from 1 into 0): overwrites buffer 0, which holds dy0.0"),
        ([(1, "x1.1 from 0 into 1", "x1.1 from 0 into 2")], "there is no buffer 2: the rank has 2"),
        # messages match
        ([(0, "send x1.1 to 1\n", "\n"), (0, "wait send x1.1\n", "\n")],
         "x1.1 is never sent by rank 0: it goes from rank 0 to 1"),
        ([(0, "send x1.1 to 1", "send x1.1 to 0")], "x1.1 goes from rank 0 to rank 1"),
        ([(1, "recv x1.0 from 0", "recv x1.0 from 1")], "x1.0 goes from rank 0 to rank 1"),
        ([(0, "send x1.0 to 1", "send x1.0 to 1\nsend x1.0 to 1")],
         "(send x1.0 to 1): one of 2, expected one send of x1.0"),
        ([(0, "    step 0", "send dy1.0 to 1\nwait send dy1.0\nstep 0")],
         "(send dy1.0 to 1): nobody needs dy1.0 from another rank"),
        ([(0, "0F0\n    send x1.0 to 1", "send x1.0 to 1\n0F0")],
         "(send x1.0 to 1): sent before F has made it on this rank"),
        ([(1, "1B0\n    send dy0.0 to 0", "send dy0.0 to 0\n1B0")],
         "(send dy0.0 to 0): sent before B has made it on this rank"),
        # channels are first in, first out
        ([(1, "recv x1.0 from 0 into 0\n    recv x1.1 from 0 into 1",
           "recv x1.1 from 0 into 1\nrecv x1.0 from 0 into 0")],
         "channel 0 to 1: message 0 is sent as x1.0 (rank 0 instruction 2 (send x1.0 to 1)) but "
         "received as x1.1 (rank 1 instruction 0 (recv x1.1 from 0 into 1))"),
        # waits
        ([(0, "wait send x1.0\n", "\n")], "rank 0 never waits for its send of x1.0"),
        ([(0, "wait send x1.0\n", "wait send x1.0\nwait send x1.0\n")],
         "(wait send x1.0): it is waited for twice"),
        ([(0, "    0F0", "wait send x1.0\n0F0"), (0, "0W1\n    free dy0.1\n    wait send x1.0", "0W1\n free dy0.1")],  # noqa: E501
         "(wait send x1.0): no send of it is posted before"),
        ([(0, "recv dy0.1 from 1 into 0\n    wait recv dy0.1",
           "wait recv dy0.1\nrecv dy0.1 from 1 into 0")],
         "(wait recv dy0.1): no receive of it is posted before"),
        ([(0, "wait recv dy0.0\n", "wait recv dy0.0\nwait recv dy0.0\n")],
         "(wait recv dy0.0): it is waited for twice"),
        # steps
        ([(0, "    step 0", "")], "step 0 runs 0 times, expected once, on rank 0"),
        ([(0, "    step 0", "step 0\nstep 0")], "step 0 runs 2 times, expected once, on rank 0"),
        ([(0, "    step 0", "step 1"), (1, "    step 1", "step 0")],
         "(step 1): no stage of it is owned by this rank"),
        ([(0, "0W1\n", "step 0\n0W1\n"), (0, "wait send x1.1\n    step 0", "wait send x1.1")],
         "(step 0): comes before 0W1"),
        ([(0, "0W1\n", "step 0\n0W1\n"), (0, "wait send x1.1\n    step 0", "wait send x1.1")],
         "(0W1): runs after step 0"),
        # reductions
        ([(0, "    step 0", "reduce 0 1\nstep 0")], "reduce 0 1 runs 0 times on rank 1"),
        ([(0, "    step 0", "step 0\nreduce 0 1"), (1, "    step 1", "reduce 0 1\nstep 1")],
         "(reduce 0 1): comes after step 0"),
        # averages over replicas
        ([(0, "    step 0", "average 0\nstep 0")], "average 1 runs 0 times, expected once, on rank 1"),  # noqa: E501
        ([(0, "    step 0", "step 0\naverage 0"), (1, "    step 1", "average 1\nstep 1")],
         "(average 0): comes after step 0"),
        ([(0, "    step 0", "average 0\nreduce 0 1\nstep 0"), (1, "    step 1", "reduce 0 1\naverage 1\nstep 1")],  # noqa: E501
         "(reduce 0 1): comes after average 0"),
        ([(0, "0W1\n", "average 0\n0W1\n"), (1, "    step 1", "average 1\nstep 1")],
         "(average 0): comes before 0W1"),
    ],
)  # fmt: skip
def test_each_breach_is_named(edits: list[tuple[int, str, str]], expected: str) -> None:
    assert expected in "\n".join(verify_program(two_stages(*edits)))


def test_a_buffer_is_for_one_kind_and_stage() -> None:
    assert verify_program(two_stages(buffers=("dy0", "x1 dy1"))) == [
        "rank 1 instruction 1 (recv x1.1 from 0 into 1): buffer 1 is for dy1, not for x1"
    ]


def test_reductions_joined_by_all_are_valid() -> None:
    edits = [(r, f"    step {r}", f"reduce 0 1\nstep {r}") for r in (0, 1)]
    assert verify_program(two_stages(*edits)) == []


def test_averages_between_reductions_and_steps_are_valid() -> None:
    edits = [(r, f"    step {r}", f"reduce 0 1\naverage {r}\nstep {r}") for r in (0, 1)]
    assert verify_program(two_stages(*edits)) == []


def test_two_ranks_that_send_and_wait_before_they_receive_are_stuck() -> None:
    blocked = two_stages(
        (0, "    recv dy0.0 from 1 into 0\n", "\n"),
        (0, "0F1\n    send x1.1 to 1", "0F1\nsend x1.1 to 1\nwait send x1.1"),
        (0, "wait send x1.0\n    wait send x1.1", "wait send x1.0"),
        (0, "wait recv dy0.0", "recv dy0.0 from 1 into 0\nwait recv dy0.0"),
        (1, "    recv x1.1 from 0 into 1\n", "\n"),
        (1, "wait recv x1.1", "wait send dy0.0\nrecv x1.1 from 0 into 1\nwait recv x1.1"),
        (1, "free x1.1\n    wait send dy0.0", "free x1.1"),
    )
    assert verify_program(blocked) == [
        "deadlock: rank 0 instruction 4 (wait send x1.1) waits for ever: rank 1 has not posted its "
        "recv",
        "deadlock: rank 1 instruction 5 (wait send dy0.0) waits for ever: rank 0 has not posted "
        "its recv",
    ]


def test_reductions_in_different_orders_are_stuck() -> None:
    program = two_stages(
        (0, "    step 0", "reduce 0 1\nreduce 1 0\nstep 0"),
        (1, "    step 1", "reduce 1 0\nreduce 0 1\nstep 1"),
    )
    assert verify_program(program) == [
        "deadlock: rank 0 instruction 16 (reduce 0 1) waits for ever: rank 1 has not come to it",
        "deadlock: rank 1 instruction 16 (reduce 1 0) waits for ever: rank 0 has not come to it",
    ]


def test_the_schedule_inside_is_verified_too() -> None:
    program = two_stages()
    program["schedule"]["order"][0][0]["end"] = 3.0
    assert "schedule: rank 0 ends 0F0 (op 0) at 3, expected 1: its start and its duration" in (
        verify_program(program)
    )


# both stages on one rank: nothing travels -------------------------------------------------------


def test_what_is_made_on_the_same_rank_does_not_travel() -> None:
    lines = "0F0\n1F0\n1BW0\n0BW0\nstep 0\nstep 1"
    schedule = by_hand("0F0 1F0 1BW0 0BW0")
    assert verify_program(document(schedule, [lines], [""])) == []
    swapped = document(schedule, [lines], [""], (0, "0F0\n1F0", "1F0\n0F0"))
    assert any("(1F0): its input x1.0 has not been made" in v for v in verify_program(swapped))


# one stage, its weights on rank 0, a microbatch on each rank: weights travel
# -----------------------

OWNER = """
    send w0.0 to 1
    recv dw0.1 from 1 into 0
    0F0
    0BW0
    wait send w0.0
    wait recv dw0.1
    step 0
    free dw0.1
"""
WORKER = """
    recv w0.0 from 0 into 0
    wait recv w0.0
    0F1
    0BW1
    free w0.0
    send dw0.1 to 0
    wait send dw0.1
"""


def weights(*edits: tuple[int, str, str]) -> Document:
    transfers = (
        Transfer(TransferKind.WEIGHT, 0, 0, source=0, target=1, after=0, before=0),
        Transfer(TransferKind.GRADIENT, 0, 0, source=1, target=0, after=2, before=2),
    )
    profile = Profile((UNIT,), 2, t_comm=0.5, shared_by=1)
    plan = by_hand("0F0 0BW0", "0F1 0BW1", profile=profile, passing=Passing.WEIGHTS)
    schedule = replace(plan, transfers=transfers, report=None)
    return document(schedule, [OWNER, WORKER], ["dw0", "w0"], *edits)


def test_weights_and_gradients_that_travel_are_valid() -> None:
    assert verify_program(weights()) == []


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([(1, "wait recv w0.0\n    0F1", "0F1\nwait recv w0.0")],
         "(0F1): the weights of stage 0 are not there"),
        ([(1, "0BW1\n    free w0.0", "free w0.0\n0BW1")],
         "(0BW1): the weights of stage 0 are not there"),
        ([(1, "0BW1\n    free w0.0\n    send dw0.1 to 0", "send dw0.1 to 0\n0BW1\nfree w0.0")],
         "(send dw0.1 to 0): sent after 1 op of the rank, before the 2 that it waits for"),
        ([(1, "0BW1\n    free w0.0\n    send dw0.1 to 0", "send dw0.1 to 0\n0BW1\nfree w0.0")],
         "(0BW1): its gradient never leaves for rank 0, which steps stage 0"),
        ([(0, "wait recv dw0.1\n    step 0", "step 0\nwait recv dw0.1")],
         "(step 0): comes before dw0.1 has come"),
        ([(0, "    wait recv dw0.1\n    step 0\n    free dw0.1", "free dw0.1\nwait recv dw0.1\nstep 0")],  # noqa: E501
         "(free dw0.1): freed before its receive is waited for"),
        ([(0, "    wait send w0.0\n", ""), (0, "free dw0.1", "free dw0.1\nwait send w0.0")],
         "(step 0): comes before the send of w0.0 is waited for"),
        ([(1, "    wait send dw0.1", "wait send dw0.1\nstep 0")],
         "(step 0): no stage of it is owned by this rank"),
        ([(0, "send w0.0 to 1\n", "\n"), (0, "wait send w0.0\n", "\n")],
         "w0.0 is never sent by rank 0: it goes from rank 0 to 1"),
    ],
)  # fmt: skip
def test_breaches_of_weight_passing_are_named(
    edits: list[tuple[int, str, str]], expected: str
) -> None:
    assert expected in "\n".join(verify_program(weights(*edits)))


# a copy of the weights, and a gradient, that go on from rank to rank ------------------------------

RING = [
    """
    send w0.0 to 1
    recv dw0.3 from 2 into 0
    0F0
    0BW0
    wait send w0.0
    wait recv dw0.3
    step 0
    free dw0.3
    """,
    """
    recv w0.0 from 0 into 0
    wait recv w0.0
    0F1
    0BW1
    send w0.1 to 2
    wait send w0.1
    free w0.0
    send dw0.2 to 2
    wait send dw0.2
    """,
    """
    recv w0.1 from 1 into 0
    recv dw0.2 from 1 into 1
    wait recv w0.1
    0F2
    0BW2
    free w0.1
    wait recv dw0.2
    send dw0.3 to 0
    wait send dw0.3
    free dw0.2
    """,
]


def ring(*edits: tuple[int, str, str]) -> Document:
    weight, gradient = TransferKind.WEIGHT, TransferKind.GRADIENT
    transfers = (
        Transfer(weight, 0, 0, source=0, target=1, after=0, before=0),
        Transfer(weight, 0, 0, source=1, target=2, after=2, before=0),
        Transfer(gradient, 0, 0, source=1, target=2, after=2, before=2),
        Transfer(gradient, 0, 0, source=2, target=0, after=2, before=2),
    )
    profile = Profile((UNIT,), 3, t_comm=0.5, shared_by=1)
    rows = [f"0F{j} 0BW{j}" for j in range(3)]
    plan = by_hand(*rows, profile=profile, passing=Passing.WEIGHTS)
    schedule = replace(plan, transfers=transfers, report=None)
    return document(schedule, RING, ["dw0", "w0", "w0 dw0"], *edits)


def test_copies_that_go_on_are_valid() -> None:
    assert verify_program(ring()) == []


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([(1, "wait send w0.1\n    free w0.0", "free w0.0\nwait send w0.1")],
         "(free w0.0): freed before it has gone on as w0.1"),
        ([(1, "0BW1\n    send w0.1 to 2", "0BW1"), (1, "    wait recv w0.0", "send w0.1 to 2\nwait recv w0.0")],  # noqa: E501
         "(send w0.1 to 2): its copy has not come with w0.0, or is freed"),
        ([(2, "wait recv dw0.2\n    send dw0.3 to 0", "send dw0.3 to 0\nwait recv dw0.2")],
         "(send dw0.3 to 0): its copy has not come with dw0.2, or is freed"),
        ([(2, "wait send dw0.3\n    free dw0.2", "free dw0.2\nwait send dw0.3")],
         "(free dw0.2): freed before it has gone on as dw0.3"),
        ([(0, "    step 0", ""), (0, "    send w0.0 to 1", "step 0\nsend w0.0 to 1")],
         "(send w0.0 to 1): sent after step 0"),
    ],
)  # fmt: skip
def test_breaches_of_copies_that_go_on_are_named(
    edits: list[tuple[int, str, str]], expected: str
) -> None:
    assert expected in "\n".join(verify_program(ring(*edits)))


def test_a_buffer_of_weights_serves_any_stage_that_is_not_larger() -> None:
    profile = Profile((replace(UNIT, weight_bytes=2.0), replace(UNIT, weight_bytes=3.0)), 2)
    schedule = build_family("weipipe-interleave", profile, 2)
    program = dump_program(compile_schedule(schedule))
    assert verify_program(program) == []
    assert "w1" in program["buffers"][0]
    program["buffers"][0] = [name.replace("w1", "w0") for name in program["buffers"][0]]
    assert any("buffer 0 is for w0, not for w1" in line for line in verify_program(program))


# shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("instructions", [[]], "program: instructions: expected 2 lists, one a rank"),
        (
            "instructions",
            [[], ["fly x1.0"]],
            "program: instructions[1][0]: expected an instruction",
        ),
        ("instructions", [[], [7]], "program: instructions[1][0]: expected an instruction"),
        ("instructions", [[], ["send x1 to 0"]], "program: instructions[1][0]: expected an"),
        ("buffers", [["x"], []], "program: buffers[0][0]: expected a kind and a stage"),
        ("buffers", 3, "program: buffers: expected a list, got 3"),
        ("schedule", 3, "program: schedule: expected an object, got 3"),
        ("version", 2, "program: version: expected 1, got 2"),
    ],
)
def test_a_wrong_shape_is_wrong_input(key: str, value: object, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        verify_program(two_stages() | {key: value})
    (line,) = caught.value.errors
    assert line.startswith(expected)


def test_another_format_is_refused() -> None:
    with pytest.raises(InputError, match=r"format: expected \"pipeloom.program\""):
        verify_program(two_stages()["schedule"])
