"""The first use on a machine says why it takes long."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pipeloom.cli import kernel_warmup as kernels
from pipeloom.ir.cost import simulator as simulate
from tests.support.command_line import Command

LINE = "pipeloom: compiling kernels, once on this machine; a time limit does not count this\n"


def until_announced() -> None:
    """A compilation that takes longer than anyone's patience."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(60)


def test_long_compiling_is_announced(
    pipeloom: Command, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "PATIENCE", 0.0)
    monkeypatch.setattr(simulate, "warm_up", until_announced)
    assert pipeloom("optimize", profile, "-m", 2, "--json", "-q").err == LINE


def test_kernels_that_are_there_are_not_worth_a_word(
    pipeloom: Command, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "PATIENCE", 3600.0)
    assert pipeloom("build", "1f1b", profile, "-m", 2, "--json").err == ""
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())
