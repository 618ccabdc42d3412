"""A command line in this process, and small input files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeloom import build
from tests.support.command_line import Command, Done, layers_document, profile_document, written
from tests.support.inner import main


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """Compile kernels, so that no announcement appears in tests of standard error."""
    build("1f1b", profile_document(), 2)


@pytest.fixture
def pipeloom(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Command:
    """``pipeloom("build", "gpipe", ...)`` in this process, without the user's cache."""
    monkeypatch.delenv("PIPELOOM_CACHE", raising=False)

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
def layers(tmp_path: Path) -> Path:
    return written(tmp_path / "layers.json", layers_document())


@pytest.fixture
def schedule(tmp_path: Path, profile: Path, pipeloom: Command) -> Path:
    path = tmp_path / "schedule.json"
    assert pipeloom("build", "zb-h1", profile, "-m", 3, "-o", path).code == 0
    return path


@pytest.fixture
def program(pipeloom: Command, schedule: Path, tmp_path: Path) -> Path:
    path = tmp_path / "program.json"
    assert pipeloom("compile", schedule, "--tied", "0,1", "-o", path).code == 0
    return path
