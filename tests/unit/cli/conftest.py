"""A command line in this process, and small input files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeloom.ir.cost.simulator import warm_up
from tests.support.command_line import Command, Done, profile_document, written
from tests.support.inner import main


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """The first simulation on a machine is announced, which tests of standard error do not
    expect."""
    warm_up()


@pytest.fixture
def pipeloom(capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    """``pipeloom("build", "gpipe", ...)`` in this process."""

    def call(*words: object) -> Done:
        capfdbinary.readouterr()
        code = main([str(word) for word in words])
        out, err = capfdbinary.readouterr()
        return Done(code, out.decode(), err.decode())

    return call


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return written(tmp_path / "profile.json", profile_document())


@pytest.fixture
def schedule(tmp_path: Path, profile: Path, pipeloom: Command) -> Path:
    path = tmp_path / "schedule.json"
    assert pipeloom("build", "zb-h1", profile, "-m", 3, "-o", path).code == 0
    return path
