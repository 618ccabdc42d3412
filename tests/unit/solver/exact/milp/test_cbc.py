"""CBC as a process: it ends when it should, and leaves nothing behind."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pulp
import pytest

from pipeloom.ir.litter import own, remove_litter
from pipeloom.solver.exact.milp import cbc, cbc_process
from pipeloom.solver.exact.milp.cbc_process import PREFIX

SIZE, ROWS = 40, 5


def _split(*, exact: bool) -> tuple[pulp.LpProblem, dict[str, float]]:
    """Market split, which CBC gets lost in, and the subset that it was made from.

    Which of the items make up given sums? ``exact``: no other answer will do.
    """
    rng = random.Random(0)
    lp = pulp.LpProblem("split", pulp.LpMinimize)
    x = [lp.add_variable(f"x{i}", cat=pulp.LpBinary) for i in range(SIZE)]
    slack = lp.add_variable("slack", 0, 0 if exact else None)
    lp += slack
    chosen = [i % 2 for i in range(SIZE)]
    for _ in range(ROWS):
        weights = [rng.randint(0, 99) for _ in x]
        total = pulp.lpSum(w * v for w, v in zip(weights, x, strict=True))
        goal = sum(w * c for w, c in zip(weights, chosen, strict=True))
        lp += total + slack >= goal
        lp += total - slack <= goal
    return lp, {v.name: float(c) for v, c in zip(x, chosen, strict=True)} | {"slack": 0.0}


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[subprocess.Popen[bytes]]:
    """The processes that are started, with temporary files in ``tmp_path``."""
    started = []

    def popen(*args: object, **options: object) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = real(*args, **options)  # type: ignore[call-overload]
        started.append(process)
        return process

    real = subprocess.Popen
    monkeypatch.setattr(cbc_process.subprocess, "Popen", popen)
    monkeypatch.setattr(cbc_process.tempfile, "tempdir", str(tmp_path))
    return started


@pytest.mark.parametrize("seconds", [1.0, 100.0])
def test_stopped_it_reports_a_bound_and_ends(
    seconds: float, processes: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """At its own time limit, or interrupted long before it."""
    looks = iter(range(1000))
    outcome = cbc.run_cbc(
        _split(exact=False)[0],
        start={},
        seconds=seconds,
        options={},
        should_stop=lambda: seconds > 1.0 and next(looks) > 20,
    )
    assert not outcome.infeasible
    assert outcome.bound is not None
    assert outcome.bound <= outcome.values["slack"]
    assert processes[0].returncode is not None
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_caller_kills_it(
    processes: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cbc.run_cbc(
            _split(exact=False)[0], start={}, seconds=100.0, options={}, should_stop=interrupt
        )
    assert processes[0].returncode is not None
    assert not list(tmp_path.iterdir())


def test_what_is_infeasible_is_said_to_be(tmp_path: Path) -> None:
    lp = pulp.LpProblem("none", pulp.LpMinimize)
    x, y = lp.add_variable("x", cat=pulp.LpBinary), lp.add_variable("y", cat=pulp.LpBinary)
    lp += x + y
    lp += 2 * x + 2 * y == 1
    outcome = cbc.run_cbc(lp, start={}, seconds=10.0, options={}, should_stop=lambda: False)
    assert outcome.infeasible
    assert not outcome.values


def test_a_start_is_used() -> None:
    lp, answer = _split(exact=True)
    outcomes = [
        cbc.run_cbc(lp, start=start, seconds=1.0, options={}, should_stop=lambda: False)
        for start in ({}, answer)
    ]
    assert not outcomes[0].values
    assert outcomes[1].values.items() >= answer.items()


KILLED = """
import os, time
from pipeloom.solver.exact.milp.cbc_process import own_folder, started
with own_folder() as folder, (folder / "log").open("wb") as log:
    process = started(["sleep", "60"], folder, log.fileno())
    print(process.pid, folder, flush=True)
    process.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal")
def test_a_killed_solve_leaves_no_process_and_its_folder_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        number, folder = job.stdout.readline().split()
        kept = tmp_path / f"{own(PREFIX)}of-a-solve-that-runs"
        others = tmp_path / f"{PREFIX}{number}-of-another-machine"
        for each in (kept, others):
            each.mkdir()
        job.kill()
    end = time.monotonic() + 10.0
    while Path("/proc", number).exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert not Path("/proc", number).exists()
    assert Path(folder).is_dir()
    remove_litter(PREFIX, tmp_path)
    assert {*tmp_path.iterdir()} == {kept, others}
