"""A failing rank ends all ranks with one message that names the cause; nothing hangs."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import nn

from pipeloom.ir import InputError, InvalidScheduleError, Receive
from pipeloom.runtime import LaunchError, Pipeline, launch_ranks
from tests.failures import cases as of
from tests.failures.cases import RANKS, program
from tests.support.inside import processes

# (fault of a rank, patience, rank that reports it, message); each in its own launch
APART: list[tuple[Callable[[Any], None], float, int, str]] = [
    (
        of.is_killed,
        60.0,
        0,
        r"^rank 0 died by SIGKILL; rank 1: .*'(wait recv x1|send dy0)\..', peer rank 0",
    ),
    (of.is_stopped, 5.0, 1, "^rank 1: .*peer rank 0: TimeoutE.* 5000ms .*; no answer from rank 0$"),
    (of.drops_its_connections, 10.0, 1, "^rank 1: .* of 8, .*, peer rank 0: Connection.*onnection"),
]


@pytest.mark.parametrize(("odd", "patience", "rank", "message"), APART)
def test_one_message_names_rank_instruction_and_reason(
    odd: Callable[[Any], None],
    patience: float,
    rank: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.5)  # seconds that a stopped rank gets to end
    with pytest.raises(LaunchError, match=message) as caught:
        launch_ranks(of.ends, 2, (odd, patience), timeout=120)
    assert (caught.value.rank, caught.value.exit_code) == (rank, 1)
    assert not multiprocessing.active_children()


LINEAR, AT = nn.Linear(4, 4), r"instruction \d+ of \d+ \(op"
# (function, rank, its message); two ranks run the functions one after the other
OF_TWO: list[tuple[Any, int, str]] = [
    (partial(of.trains, [of.Odd(of.is_longer), LINEAR]), 0, "'0F1': ShapeError: stage 0: its outp"),
    (partial(of.trains, [of.Odd(of.throws), LINEAR]), 0, f"{AT} 1 of 12\\), '0F1': ValueErro"),
    (partial(of.trains, [LINEAR, of.Odd(of.throws_in_b)]), 1, f"{AT} \\d+ of 12\\), '1B2': Value"),
    (partial(of.trains, [LINEAR, of.FailingWeight()]), 1, f"{AT} \\d+ of 12\\), '1W0': ValueError"),
    (of.is_left_alone, 0, r"\(before op 2 of 8, 0BW0\), 'wait (send x1|recv dy0)\.0', peer rank 1"),
    (of.gives_no_verdict, 0, "'relay verdict from 1', peer rank 1: TimeoutError: Timed out wait"),
    (of.asks_for_a_state_alone, 0, "finish, which all .* waits for the verdict on it: Timeout"),
    (of.waits_for_another_replica, 0, r"'step 0': ConnectionError: the average of stage \d over t"),
]
ALONE = "gathering the shards of stage 0 over the replicas, waited at most 2 s: "
# faults that both ranks report before the first step
UNLIKE = "^InputError None: program: expected one on all ranks, got"
OPS = "recv dy0.0 from 1 into 0' on rank 0, 'instruction 2 of rank 0: 0F1' on rank 1$"
OF_BOTH = [
    (of.differs_in_its_program, f"{UNLIKE} 'instruction 2 of rank 0: {OPS}"),
    (of.differs_in_an_option, f"{UNLIKE} 'param_dtype: None' on rank 0, .*torch.bfloat16' on r"),
]
# (fault of one of two replicas, whether stages are shards, error, message)
OF_REPLICAS = [
    (of.evaluates_a_bad_batch, False, "ShapeError", r"stage 0 does not run on float32\[2, 3\]"),
    (of.missing_target, False, "InputError", "step: rank 0 runs the last stage: target is missing"),
    (of.evaluates_a_bad_target, True, "ShapeError", r"target: float32\[7, 4\] cannot be cut into"),
]
# by fault of one of three ranks: the rank, the error and the message
BAD: dict[Any, tuple[int, str, str]] = {
    of.bad_target: (2, "InputError", "step: rank 2 runs the last stage: target is missing"),
    of.other_shape: (0, "ExecutionError", r"stage 0: its output is float32\[4, 4\], was float32"),
    of.bad_option: (1, "ExecutionError", "got an unexpected keyword argument 'scale'"),
    of.bad_metric: (2, "ExecutionError", r"TypeError: squared\(\) got an unexpected keyword argum"),
}
# the others learn of the fault by messages of activations, of the norm, or of weights
OF_ONE = [
    *((partial(of.of_one_rank, "1f1b", fault), *told) for fault, told in BAD.items()),
    (partial(of.of_one_rank, "zb-h1 ahead", of.bad_target), *BAD[of.bad_target]),
    (partial(of.of_one_rank, "zb-h1 ahead", of.other_shape), *BAD[of.other_shape]),
    (partial(of.of_one_rank, "weipipe-interleave", of.other_shape), *BAD[of.other_shape]),
    (of.lacks_a_stage, 1, "InputError", r"stages: this rank runs stages \[1\], \[1\] are missing"),
    (of.has_a_bad_optimizer, 1, "ExecutionError", "a bad batch$"),
    (of.does_not_come, 1, "ExecutionError", "not there where all ranks make their Pipeline, wait"),
]
# faults that all three ranks report
OF_ALL = [
    (of.updates_unlike, "^$"),
    (of.steps_by_another_program, "InputError .*: program: expected one on all .* on ranks 0, 2"),
]


LAUNCHES = {"two": 2, "two with shards": 2, "three": RANKS}
"""The number of ranks of each launch. Shards have their own, as they make a group unusable."""


def expected() -> Iterator[tuple[str, Any, dict[int, str]]]:
    """Yield each function with its launch, and the messages that some ranks must report."""
    for function, rank, text in OF_TWO:
        yield "two", function, {rank: text}
    for function, text in OF_BOTH:
        yield "two", function, dict.fromkeys(range(2), text)
    for fault, wraps, kind, text in OF_REPLICAS:
        said = {0: f"^{kind} None: (?!process).*{text}", 1: f"^{kind} .*: process 0, .*{text}"}
        yield "two", partial(of.of_one_replica, fault, wraps), said
    yield "two with shards", of.gathers_shards_alone, {0: ALONE}
    for function, text in OF_ALL:
        yield "three", function, dict.fromkeys(range(RANKS), text)
    for function, culprit, kind, text in OF_ONE:
        others = dict.fromkeys(range(RANKS), f"^{kind} {culprit}: rank {culprit}: .*{text}")
        own = "another rank" if function is of.does_not_come else f"^.* None: .*{text}"
        yield "three", function, others | {culprit: own}


@cache
def said(launch: str) -> dict[Any, list[str]]:
    """The messages of each rank for each function of a launch."""
    functions = [function for name, function, _ in CASES if name == launch]
    with TemporaryDirectory() as folder:
        found = launch_ranks(of.in_turn, LAUNCHES[launch], (functions, folder), timeout=250)
    return dict(zip(functions, map(list, zip(*found.values(), strict=True)), strict=True))


CASES = [*expected()]


@pytest.mark.parametrize(("launch", "function", "lines"), CASES)
def test_one_line_names_rank_instruction_and_reason(
    launch: str, function: Callable[..., object], lines: dict[int, str]
) -> None:
    found = said(launch)[function]
    for rank, line in lines.items():
        assert re.search(line, found[rank]), found


def test_swapped_receives_are_refused() -> None:
    good = program()
    row = list(good.instructions[1])
    first, second, *_ = (i for i, item in enumerate(row) if isinstance(item, Receive))
    row[first], row[second] = row[second], row[first]
    swapped = replace(good, instructions=(good.instructions[0], tuple(row)))
    with pytest.raises(
        InvalidScheduleError, match=r"message 0 is sent as x1\.0 .* but received as x1\.1"
    ):
        Pipeline(swapped, of.linears())


def made_before() -> Any:
    """An optimizer, to be passed where a function that makes one is expected."""
    return torch.optim.AdamW(nn.Linear(4, 4).parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pipeline(program(), of.linears()), "made for 2 ranks, run by 1"),
        (lambda: Pipeline(of.alone(), {0: nn.Linear(4, 4)}), r"\[1\] are missing"),
        (lambda: Pipeline(of.alone(), of.linears(3)), "2 stages in all or the 2 of this rank"),
        (lambda: Pipeline(of.alone(), {0: nn.ReLU(), 1: dict}), "expected a torch.nn.Module"),
        (
            lambda: Pipeline(of.alone(), of.linears(), optimizer=made_before()),
            "got AdamW$",
        ),
    ],
)
def test_what_does_not_fit_is_said_at_once(make: Callable[[], Pipeline], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
