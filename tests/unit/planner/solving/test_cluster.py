"""A real Dask scheduler with three worker processes, one of which is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing import active_children
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from pipeloom import InputError, plan, sweep
from pipeloom.planner import LostWorkersError, Workers
from tests.support.command_line import untimed
from tests.support.processes import ENVIRONMENT, until
from tests.support.tasks import killed_once, missing_module, until_nobody_waits

pytest.importorskip("distributed")
pytestmark = pytest.mark.slow

LIMITS = [5.0, 6.0, 7.0, 8.0]
PROFILE = "examples/profiles/zb-6.2b.json"
PLAN: dict[str, Any] = {
    **{"global_batch": 16, "seq": 2048, "pp": 4, "tp": 1, "micro_batch": 1, "recompute": "none"},
    "work_limit": 40,
}
SECONDS = 120.0


class Cluster:
    """A scheduler and three workers, each a process."""

    def __init__(self, processes: ExitStack, folder: Path) -> None:
        self._processes, self._folder = processes, folder
        self.scheduler = self._begin("scheduler", "--port", "0", "--host", "127.0.0.1")
        file = folder / "scheduler.json"
        until(lambda: file.exists() and bool(file.read_text()), SECONDS)
        self.address = str(json.loads(file.read_text())["address"])
        more = (self.address, "--nthreads", "1", "--no-nanny")
        self.workers = [self._begin("worker", *more) for _ in range(3)]

    def _begin(self, what: str, *words: str) -> subprocess.Popen[bytes]:
        file = ("--scheduler-file", str(self._folder / "scheduler.json"))
        words += file if what == "scheduler" else ("--local-directory", str(self._folder))
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", "--no-dashboard", *words]
        nowhere = subprocess.DEVNULL
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=nowhere, stderr=nowhere)
        self._processes.callback(process.wait)
        self._processes.callback(process.kill)
        return process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as processes:
        yield Cluster(processes, tmp_path)


def test_a_sweep_is_the_same_as_in_one_process_though_a_worker_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    tasks = [(number, tmp_path / "mark") for number in range(9)]
    found = dict(Workers(scheduler=cluster.address).run(killed_once, tasks))
    assert found == {number: number * number for number in range(9)}
    assert [worker.poll() is None for worker in cluster.workers].count(False) == 1
    last = next(worker for worker in cluster.workers if worker.poll() is None)
    told: list[str] = []

    def listen(event: object) -> None:
        told.append(str(event))
        if " of 4 solved" in told[-1] and last.poll() is None:
            last.kill()

    asked: dict[str, Any] = {"work_limit": 100, "seed": 3}
    one = sweep(PROFILE, 24, LIMITS, **asked)
    spread = sweep(PROFILE, 24, LIMITS, **asked, progress=listen, scheduler=cluster.address)
    assert last.poll() is not None
    assert told[-1].startswith("4 of 4 solved")
    assert untimed(one.to_dict()) == untimed(spread.to_dict())
    assert one.picture() == spread.picture()


def written(folder: Path, **where: Any) -> dict[str, bytes]:
    """The files of a plan, byte for byte but for the folder's own name."""
    plan("llama-3-8b", "H100", gpus=8, **PLAN, **where).write(folder)
    name = bytes(folder)
    return {path.name: path.read_bytes().replace(name, b"FOLDER") for path in folder.iterdir()}


def test_a_plan_is_the_same_byte_for_byte_though_a_worker_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Of a cluster, or of this machine's processes."""
    told: list[str] = []

    def listen(event: object) -> None:
        told.append(str(event))
        if len(told) == 1:
            cluster.workers[0].kill()

    def kill_here(event: object) -> None:
        here.append(str(event))
        if len(here) == 1:
            active_children()[0].kill()

    here: list[str] = []
    one = written(tmp_path / "one")
    assert {"plan.json", "plan.svg", "schedule.json", "program.json"} <= one.keys()
    assert one == written(tmp_path / "far", scheduler=cluster.address, progress=listen)
    assert cluster.workers[0].poll() is not None
    assert one == written(tmp_path / "near", workers=3, progress=kill_here)
    assert any("a worker was lost" in line for line in here)


def test_who_leaves_ends_what_runs_there(cluster: Cluster, tmp_path: Path) -> None:
    marks = [tmp_path / f"mark{number}" for number in range(2)]
    begun = [mark.with_suffix(".begun") for mark in marks]
    asked = Workers(scheduler=cluster.address).run(
        until_nobody_waits, marks, should_stop=lambda: all(mark.exists() for mark in begun)
    )
    assert list(asked) == []
    until(lambda: all(mark.exists() for mark in marks), SECONDS)


def test_a_lost_scheduler_and_missing_modules_are_a_line(cluster: Cluster) -> None:
    workers = Workers(scheduler=cluster.address)
    with pytest.raises(InputError, match=r"^scheduler: expected pipeloom .* to be importable"):
        list(workers.run(missing_module, [1]))
    asked = workers.run(sleep, [0, 300])
    next(asked)
    cluster.scheduler.kill()
    with pytest.raises(LostWorkersError, match=r"^scheduler: lost; expected it to answer"):
        next(asked)
