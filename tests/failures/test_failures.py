"""A rank that fails ends all with one message that says where; nothing hangs."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from torch import nn

from pipeloom.ir import InputError, InvalidScheduleError, Program, Receive
from pipeloom.runtime import LaunchError, Pipeline, launch_ranks
from tests.failures import cases as failure_cases
from tests.failures.cases import program, squared


@pytest.mark.parametrize(
    ("function", "rank", "message"),
    [
        (
            failure_cases.throws_in_a_forward,
            0,
            r"^rank 0: instruction \d+ of \d+ \(op 1 of 8\), '0F1': ValueError: a bad batch$",
        ),
        (
            failure_cases.is_killed,
            0,
            r"^rank 0 died by SIGKILL; rank 1: instruction \d+ of \d+ "
            r"\(before op \d of 8, 1F[01]\), 'wait recv x1\.[01]', peer rank 0: ",
        ),
        (
            failure_cases.is_stopped,
            1,
            r"^rank 1: .*'wait recv x1\.[01]', peer rank 0: TimeoutError: Timed out waiting 2000ms "
            r".*; no answer from rank 0$",
        ),
        (
            failure_cases.drops_its_connections,
            1,
            r"^rank 1: .*\(before op \d of 8, .*\), '.*', peer rank 0: "
            r"ConnectionError: .*[Cc]onnection",
        ),
        (
            failure_cases.is_left_alone,
            0,
            r"^rank 0: instruction \d+ of \d+ \(before op 2 of 8, 0BW0\), "
            r"'wait (send x1|recv dy0)\.0', peer rank 1: ",
        ),
        (
            failure_cases.gives_no_verdict,
            0,
            r"^rank 0: .*'relay verdict from 1', peer rank 1: TimeoutError: Timed out waiting "
            r"2000ms",
        ),
        (
            failure_cases.waits_for_another_replica,
            0,
            r"^rank 0: .*\(after the last of 24 ops\), 'step 0': ConnectionError: the average of "
            r"stage \d over the replicas: ",
        ),
        (
            failure_cases.gathers_shards_alone,
            0,
            r"^rank 0: gathering the shards of stage 0 over the replicas, waited at most 2 s: ",
        ),
        (
            failure_cases.asks_for_a_state_alone,
            0,
            r"^rank 0: finish, which all ranks call after the same step, waits for the verdict on "
            r"it: "
            r"TimeoutError: Timed out waiting 2000ms",
        ),
    ],
)
def test_one_message_names_rank_instruction_and_reason(
    function: Callable[[], None], rank: int, message: str
) -> None:
    with pytest.raises(LaunchError, match=message) as caught:
        launch_ranks(function, 2, timeout=120)
    assert caught.value.rank == rank
    assert caught.value.exit_code == 1
    assert not multiprocessing.active_children()


# by what two ranks run, one after the other: the rank that it ends, and what that raises
IN_TURN = {
    failure_cases.changes_a_shape: (
        0,
        r"'0F1': ShapeError: stage 0: its output is float32\[4, 4\], was float32\[2, 4\]",
    ),
    failure_cases.throws_in_b: (
        1,
        r"instruction \d+ of \d+ \(op 1 of 12\), '1B0': ValueError: a bad gradient$",
    ),
    failure_cases.throws_in_w: (
        1,
        r"instruction \d+ of \d+ \(op \d+ of 12\), '1W0': ValueError: a bad product$",
    ),
}
UNLIKE = {
    failure_cases.differs_in_its_program: (
        "'instruction 2 of rank 0: recv dy0.0 from 1 into 0' on rank 0, "
        "'instruction 2 of rank 0: 0F1' on rank 1"
    ),
    failure_cases.differs_in_an_option: (
        "'param_dtype: None' on rank 0, 'param_dtype: torch.bfloat16' on rank 1"
    ),
}


@cache
def in_turn() -> dict[Callable[[], None], list[str]]:
    """What both ranks say of each."""
    functions = [*IN_TURN, *UNLIKE]
    found = launch_ranks(failure_cases.in_turn, 2, (functions,), timeout=200)
    return {each: [found[rank][i] for rank in (0, 1)] for i, each in enumerate(functions)}


@pytest.mark.parametrize("function", IN_TURN, ids=lambda function: function.__name__)
def test_one_line_names_rank_instruction_and_reason(function: Callable[[], None]) -> None:
    rank, line = IN_TURN[function]
    assert re.search(line, in_turn()[function][rank]), in_turn()[function]


@pytest.mark.parametrize("function", UNLIKE, ids=lambda function: function.__name__)
def test_unlike_programs_are_found_before_the_first_step(function: Callable[[], None]) -> None:
    hashes = "[0-9a-f]{16} on rank 0, [0-9a-f]{16} on rank 1"
    wanted = f"program: expected one on all ranks, got {hashes} \\(hashes\\); they differ first in "
    for rank, answer in enumerate(in_turn()[function]):
        found = re.match(f"rank {rank}: {wanted}", answer)
        assert found is not None, answer
        assert answer[found.end() :] == UNLIKE[function]


def test_swapped_receives_are_refused() -> None:
    good = program()
    row = list(good.instructions[1])
    first, second, *_ = (i for i, item in enumerate(row) if isinstance(item, Receive))
    row[first], row[second] = row[second], row[first]
    swapped = replace(good, instructions=(good.instructions[0], tuple(row)))
    with pytest.raises(
        InvalidScheduleError, match=r"message 0 is sent as x1\.0 .* but received as x1\.1"
    ):
        Pipeline(swapped, [nn.Linear(4, 4)] * 2, loss=squared)


def one_rank() -> Program:
    """Both of two stages on one rank: no processes needed."""
    return failure_cases.alone()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pipeline(program(), [nn.Linear(4, 4)] * 2), "made for 2 ranks, run by 1"),
        (lambda: Pipeline(one_rank(), {0: nn.Linear(4, 4)}), r"\[1\] are missing"),
        (
            lambda: Pipeline(one_rank(), [nn.Linear(4, 4)] * 3),
            "2 stages in all or the 2 of this rank",
        ),
        (lambda: Pipeline(one_rank(), {0: nn.ReLU(), 1: dict}), "expected a torch.nn.Module"),
    ],
)
def test_what_does_not_fit_is_said_at_once(make: Callable[[], Pipeline], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


# by fault: the rank that it is of, and what is said of it
FAULTS = {
    "bad_target": (2, "InputError", "step: rank 2 runs the last stage: target is missing"),
    "bad_batch": (
        0,
        "ShapeError",
        "input 0: float32[5, 4] cannot be cut into 3 equal microbatches along dimension 0",
    ),
    "other_shape": (0, "ShapeError", "step: stage 0 is given float32[4, 4] for microbatch 0"),
    "bad_option": (1, "ShapeError", "step: stage 1 is given scale=2.0 for microbatch 0"),
    "bad_metric": (2, "ExecutionError", "TypeError: squared() got an unexpected keyword argument"),
}


def test_one_ranks_fault_ends_all_ranks_at_once() -> None:
    """Long before the message that they wait for would time out."""
    found = launch_ranks(
        failure_cases.ends_with_its_peers, failure_cases.RANKS, (300.0,), timeout=100
    )
    assert all(len(rows) == len(failure_cases.TRIED) for rows in found.values())
    for i, (plan, fault) in enumerate(failure_cases.TRIED):
        name = fault.__name__
        culprit, kind, text = FAULTS[name]
        for rank, rows in found.items():
            raised, message, named = rows[i]
            assert text in message, (plan, name, rank)
            if rank == culprit:
                assert named is None
                continue
            assert (raised, named) == (kind, culprit), (plan, name, rank)
            assert message.startswith(f"rank {culprit}: ")


@pytest.mark.parametrize(
    ("wraps", "name", "kind", "text"),
    [
        (False, "evaluates_a_bad_batch", "ShapeError", "stage 0 does not run on float32[2, 3]"),
        (True, "evaluates_a_bad_target", "ShapeError", "target: float32[7, 4] cannot be cut into"),
        (True, "missing_target", "InputError", "step: rank 0 runs the last stage: target is"),
    ],
)
def test_one_replicas_fault_ends_all_replicas_at_once(
    wraps: bool, name: str, kind: str, text: str
) -> None:
    """All go on after what the first step's questions refuse."""
    unlike = "update: expected one value on all replicas, got [True, False]"
    found = launch_ranks(failure_cases.ends_with_its_replicas, 2, (60.0, wraps, name), timeout=50)
    for replica, ((refused, said, _), (raised, message, seconds)) in found.items():
        assert (refused, said) == ("InputError", unlike)
        assert raised == kind
        assert text in message
        assert seconds < 10
        assert message.startswith("replica 0, ") == (replica == 1), message


UNLIKE_STEPS = (
    "InputError: program: expected one on all ranks, got [0-9a-f]{16} on ranks 0, 2, ",
    "InputError: rank 0: microbatches: expected 3, as the program has, without programs=",
)


def test_first_steps_that_ranks_do_not_begin_alike_are_refused_on_all() -> None:
    """Long before the messages that they wait for would time out."""
    found = launch_ranks(failure_cases.steps_unlike, failure_cases.RANKS, timeout=100)
    wanted = "update: expected one value on all ranks, got [True, False, False]"
    assert all(updates == [wanted] for updates, _ in found.values())
    for lines in zip(*(told for _, told in found.values()), UNLIKE_STEPS, strict=True):
        assert len(set(lines[:-1])) == 1
        assert re.match(lines[-1], lines[0]), lines


MAKING = (
    ("InputError", "rank 1: stages: this rank runs stages [1], [1] are missing"),
    ("ExecutionError", "rank 1: ValueError: a bad optimizer"),
    ("ExecutionError", "rank 1: not there where all ranks make their Pipeline, waited at most 1 s"),
)


def test_a_rank_that_makes_no_pipeline_is_named_by_all() -> None:
    found = launch_ranks(failure_cases.makes_no_pipeline, failure_cases.RANKS, (1.0,), timeout=60)
    for rank in (0, 2):
        assert found[rank] == [(kind, text, 1) for kind, text in MAKING]
    assert [text for _, text, _ in found[1]] == [
        "stages: this rank runs stages [1], [1] are missing",
        "a bad optimizer",
    ]
