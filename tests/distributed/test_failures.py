"""A rank that fails ends all with one message that says where; nothing hangs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import nn

from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.program import Program, Receive
from pipeloom.runtime.errors import LaunchError
from pipeloom.runtime.launch import launch
from pipeloom.runtime.pipeline import Pipeline
from tests.distributed import failure_cases
from tests.distributed.failure_cases import program, squared


@pytest.mark.parametrize(
    ("function", "rank", "message"),
    [
        (
            failure_cases.throws_in_a_forward,
            0,
            r"^rank 0: instruction \d+ of \d+, '0F1': ValueError: a bad batch$",
        ),
        (
            failure_cases.is_left_alone,
            0,
            r"^rank 0: instruction \d+ of \d+, 'wait (send x1|recv dy0)\.0', peer rank 1: ",
        ),
        (
            failure_cases.changes_a_shape,
            0,
            r"'0F1': ShapeError: stage 0: its output is float32\[4, 4\], was float32\[2, 4\]",
        ),
        (
            failure_cases.changes_a_dtype,
            0,
            r"'0F1': ShapeError: stage 0: its output is float64\[2, 4\], was float32\[2, 4\]",
        ),
        (
            failure_cases.throws_in_b,
            1,
            r"instruction \d+ of \d+, '1B0': ValueError: a bad gradient$",
        ),
        (
            failure_cases.throws_in_bw,
            1,
            r"instruction \d+ of \d+, '1BW0': ValueError: a bad gradient",
        ),
        (
            failure_cases.throws_in_w,
            1,
            r"instruction \d+ of \d+, '1W0': ValueError: a bad product$",
        ),
        (failure_cases.is_killed, 0, r"^rank 0 died by SIGKILL$"),
        (
            failure_cases.is_stopped,
            1,
            r"^rank 1: .*'wait recv x1\.1', peer rank 0: TimeoutError: Timed out waiting 2000ms",
        ),
        (
            failure_cases.drops_its_connections,
            1,
            r"^rank 1: .*, peer rank 0: (ConnectionError: connection closed|BrokenPipeError)",
        ),
    ],
)
def test_one_message_names_rank_instruction_and_reason(
    function: Callable[[], None], rank: int, message: str
) -> None:
    with pytest.raises(LaunchError, match=message) as caught:
        launch(function, 2, timeout=120)
    assert caught.value.rank == rank
    assert caught.value.exit_code == 1
    assert not multiprocessing.active_children()


def test_a_batch_of_another_shape_is_refused() -> None:
    answers = launch(failure_cases.changes_the_batch, 2, timeout=120)
    assert answers[0] == "step: inputs are float32[4, 4], were float32[2, 4] in the first step"


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
        (lambda: Pipeline(one_rank(), [nn.Linear(4, 4)] * 3), "all 2 stages or the 2 of this rank"),
        (lambda: Pipeline(one_rank(), {0: nn.ReLU(), 1: dict}), "expected a torch.nn.Module"),
    ],
)
def test_what_does_not_fit_is_said_at_once(make: Callable[[], Pipeline], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
