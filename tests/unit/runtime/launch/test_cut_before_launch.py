"""A model that cannot be cut as asked is refused before any process is started."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

from examples.gpt import small
from pipeloom import measure, run
from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, Profile, StageProfile
from pipeloom.solver import build_family


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(multiprocessing, "get_context", started)


def test_more_stages_than_the_model_has_layers() -> None:
    with pytest.raises(InputError, match=r"^stages: expected 1 to 4 \(the blocks\), got 99$"):
        measure(small(), stages=99)


def test_a_program_of_more_stages_than_the_model_has_layers() -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * 6, ranks=6)
    program = compile_schedule(build_family("1f1b", profile, 6))
    with pytest.raises(InputError, match=r"^stages: expected 1 to 4 \(the blocks\), got 6$"):
        run(program, small(), steps=1)


def test_more_ranks_than_stages() -> None:
    with pytest.raises(InputError, match=r"^ranks: expected at most 2, as many as stages, got 99$"):
        measure(small(), stages=2, ranks=99)
