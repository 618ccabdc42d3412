"""The first use on a machine says why it takes long."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeloom.ir import simulate
from tests.unit.cli.support import Command

LINE = "pipeloom: compiling kernels, once on this machine: some seconds\n"


class Stats:
    def __init__(self, folder: Path) -> None:
        self.cache_path = str(folder)


class Kernel:
    """The simulator's, with its machine code elsewhere."""

    def __init__(self, folder: Path, kernel: object) -> None:
        self.stats = Stats(folder)
        self.kernel = kernel

    def __call__(self, *arguments: object) -> object:
        return self.kernel(*arguments)  # type: ignore[operator]


def test_compiling_is_announced_once(
    pipeloom: Command, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "run_kernel", Kernel(tmp_path, simulate.run_kernel))
    words = ["build", "1f1b", profile, "-m", 2, "--json"]
    assert pipeloom(*words).err == LINE
    (tmp_path / "simulate.run_kernel-34.py311.nbi").touch()
    assert pipeloom(*words).err == ""
