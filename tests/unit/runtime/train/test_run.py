"""Callbacks of a run, and what a long run keeps."""

from __future__ import annotations

import re
from typing import Any

import pytest

from examples.mlp import MLP
from pipeloom import StepRecord, compile_schedule, run
from pipeloom.ir import Program
from pipeloom.runtime import ExecutionError
from tests.support.inside import listening
from tests.support.schedules import schedule

pytestmark = pytest.mark.usefixtures("here")
HERE = "tests.unit.runtime.train.test_run"
RECORD = StepRecord(1, 1.5, 0.01, 128, None, 10, 2.0, "too much")
heard: list[int] = []


def program() -> Program:
    return compile_schedule(schedule("1f1b", 1, 2))


def note(record: StepRecord) -> None:
    heard.append(record.step)


class Closing:
    """Constructed without arguments."""

    closed = 0

    def __call__(self, record: StepRecord) -> None:
        heard.append(-record.step)

    def close(self) -> None:
        type(self).closed += 1


def fails(record: StepRecord) -> None:
    raise ValueError("disk\nfull")


class Open(Closing):
    def close(self) -> None:
        raise OSError("gone")


def test_callbacks_are_told_in_turn_and_closed_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heard.clear()
    Closing.closed = 0
    run(program(), MLP(), steps=2, callbacks=[f"{HERE}:note", f"{HERE}:Closing", note], quiet=False)
    assert (heard, Closing.closed) == ([0, 0, 0, 1, -1, 1], 1)
    told = re.findall(r"^step \d: loss \d\.\d{4}, \d+\.\d ms$", capsys.readouterr().err, re.M)
    assert len(told) == 2


@pytest.mark.parametrize(
    ("callback", "line"),
    [
        (f"{HERE}:fails", f"callback {HERE}:fails: step 0: ValueError: disk"),
        (fails, f"callback {HERE}:fails: step 0: ValueError: disk"),
        (Open(), f"callback {HERE}:Open: close: OSError: gone"),
    ],
)
def test_an_error_of_a_callback_is_one_line_and_the_run_has_failed(
    callback: Any, line: str
) -> None:
    with pytest.raises(ExecutionError) as caught:
        run(program(), MLP(), steps=1, callbacks=[callback])
    assert (str(caught.value), caught.value.exit_code) == (line, 1)


def test_progress_is_a_line_a_step_and_other_processes_of_torchrun_tell_nobody(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard.clear()
    for rank, callbacks in (("0", [note]), ("1", ["no.such:callback", note])):
        monkeypatch.setenv("RANK", rank)
        with listening(callbacks, progress=True) as listener:
            listener(RECORD)
    assert heard == [1]
    line = "step 1: loss 1.5000, eval 2.0000, 10.0 ms\nnote: too much\n"
    assert capsys.readouterr().err == line
