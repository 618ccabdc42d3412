"""Whatever a command has started ends with it, however that ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeloom import Answer, optimize
from pipeloom.ir.litter import remove_litter
from pipeloom.solver.exact.milp import cbc_process
from tests.support.command_line import Command, profile_document, written
from tests.support.interrupted import Started

TIMES = [(10, 6, 15), (3, 3, 1), (20, 3, 15), (9, 16, 12), (19, 10, 13)]
# of five stages that CBC works on for minutes
UNLIKE = [{"t_f": f, "t_b": b, "t_w": w, "m_b": 1, "m_w": 0.5} for f, b, w in TIMES]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_cbc_and_its_folder_end_with_an_interrupted_or_killed_solve(tmp_path: Path) -> None:
    document = profile_document(stages=UNLIKE, ranks=5, t_comm=2.5, memory_limit=3)
    path = written(tmp_path / "p.json", document)
    words = ["optimize", path, "-m", 8, "--solver", "milp", "--time-limit", 200]
    runs = [
        Started([*words, "-o", tmp_path / f"{name}.json"], tmp_path / name)
        for name in ("interrupted", "killed")
    ]
    for run in runs:
        run.until(lambda found: "cbc" in found.values())
        assert run.process.poll() is None, "it ended before CBC began"
    code, line, left = runs[0].ended(signal.SIGINT, signal.SIGINT)
    assert (code in (0, 130), left) == (True, []), (code, line)
    code, _, left = runs[1].ended(signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert all(name.startswith(cbc_process.PREFIX) for name in left)
    remove_litter(cbc_process.PREFIX, runs[1].folder)  # as the next start does
    assert not list(runs[1].folder.iterdir())


def test_an_interrupted_explanation_is_one_line(
    pipeloom: Command, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one ends it: the first keeps what is explained so far."""

    def press(*_: object, **__: object) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Answer, "explain", press)
    out = tmp_path / "best.json"
    done = pipeloom("optimize", profile, "-m", 4, "--explain", "-q", "-o", out)
    assert (done.code, done.out) == (130, "")
    assert done.err.splitlines()[-1] == "pipeloom: interrupted; nothing was written"
    assert not out.exists()


def test_an_interrupted_prediction_says_so(
    pipeloom: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*given: Any, **options: Any) -> Answer:
        os.kill(os.getpid(), signal.SIGINT)
        return optimize(*given, **options)

    monkeypatch.setattr("pipeloom.planner.optimize.optimize", pressed)
    run = ("--gpus", 2, "--pp", 2, "--global-batch", 4, "--schedule", "optimal")
    done = pipeloom("predict", "llama-3-8b", "--gpu", "H100", *run)
    assert done.code == 0
    assert done.err.splitlines()[-1] == "pipeloom: interrupted: this is the best schedule so far"
