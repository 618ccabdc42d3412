"""Who is told of a step: callbacks, by name too, and the progress on standard error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom import StepRecord
from pipeloom.runtime import ExecutionError
from pipeloom.runtime.train.callbacks import listening
from pipeloom.runtime.train.loop import Compiling, Listener

HERE = "tests.unit.runtime.train.test_callbacks"
RECORDS = [
    StepRecord(step, 2.5 - step, 0.01, 128, None, 10, 2.0 if step else None) for step in (0, 1)
]
heard: list[int] = []


def note(record: StepRecord) -> None:
    heard.append(record.step)


class Closing:
    """Made without arguments."""

    closed = 0

    def __call__(self, record: StepRecord) -> None:
        heard.append(-record.step)

    def close(self) -> None:
        type(self).closed += 1


def fails(record: StepRecord) -> None:
    raise ValueError("disk\nfull")


def test_callbacks_are_told_in_turn_and_closed_at_the_end() -> None:
    heard.clear()
    Closing.closed = 0
    with listening([f"{HERE}:note", f"{HERE}:Closing", note], None) as listener:
        for record in RECORDS:
            listener(record)
        assert Closing.closed == 0
    assert (heard, Closing.closed) == ([0, 0, 0, 1, -1, 1], 1)


def test_in_other_processes_of_torchrun_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    heard.clear()
    with listening(["no.such:callback", note], 2) as listener:
        listener(RECORDS[0])
    assert heard == []


class Open:
    """Neither called nor closed in vain."""

    def __call__(self, record: StepRecord) -> None:
        heard.append(record.step)

    def close(self) -> None:
        raise OSError("gone")


@pytest.mark.parametrize("callback", [f"{HERE}:fails", fails])
def test_an_error_of_a_callback_is_one_line_and_the_run_has_failed(
    callback: Listener | str,
) -> None:
    with pytest.raises(ExecutionError) as caught, listening([callback], None) as listener:
        listener(RECORDS[1])
    assert str(caught.value) == f"callback {HERE}:fails: step 1: ValueError: disk"
    assert caught.value.exit_code == 1


def test_an_error_in_closing_names_the_callback() -> None:
    with (
        pytest.raises(ExecutionError, match=f"^callback {HERE}:Open: close: OSError: gone$"),
        listening([Open()], None) as listener,
    ):
        listener(RECORDS[0])


def test_progress_is_a_line_a_step_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    heard.clear()
    with listening([note], 2) as listener:
        listener(Compiling(1, 2))
        listener(Compiling(2, 2))
        assert heard == []
        listener(replace(RECORDS[0], note="too much"))
        listener(RECORDS[1])
    assert capsys.readouterr().err == (
        "compiled 2 of 2 functions of the first rank's stages\n"
        "step 0: loss 2.5000, 10.0 ms\nnote: too much\nstep 1: loss 1.5000, eval 2.0000, 10.0 ms\n"
    )
