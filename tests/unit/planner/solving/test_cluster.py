"""A real Dask scheduler with three worker processes, for what needs Dask itself.

The handling of its answers is tested without Dask in ``test_workers.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import sleep

import pytest

from pipeloom.planner import LostWorkersError, Workers
from tests.support.processes import ENVIRONMENT, until
from tests.support.tasks import killed_once, until_nobody_waits

pytest.importorskip("distributed")
pytestmark = pytest.mark.slow

SECONDS = 120.0


class Cluster:
    """A scheduler and three workers, each in its own process."""

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


def test_a_killed_worker_costs_no_result(cluster: Cluster, tmp_path: Path) -> None:
    tasks = [(number, tmp_path / "mark") for number in range(9)]
    with Workers(scheduler=cluster.address) as away:
        found = dict(away.run(killed_once, tasks))
    assert found == {number: number * number for number in range(9)}
    assert [worker.poll() is None for worker in cluster.workers].count(False) == 1


def test_who_leaves_ends_what_runs_there(cluster: Cluster, tmp_path: Path) -> None:
    marks = [tmp_path / f"mark{number}" for number in range(2)]
    begun = [mark.with_suffix(".begun") for mark in marks]
    with Workers(scheduler=cluster.address) as away:
        asked = away.run(
            until_nobody_waits, marks, should_stop=lambda: all(mark.exists() for mark in begun)
        )
        assert list(asked) == []
    until(lambda: all(mark.exists() for mark in marks), SECONDS)


def test_a_lost_scheduler_is_a_line(cluster: Cluster) -> None:
    def two_tasks() -> None:
        with Workers(scheduler=cluster.address) as away:
            asked = away.run(sleep, [0, 300])
            next(asked)
            cluster.scheduler.kill()
            next(asked)

    with pytest.raises(LostWorkersError, match=r"^scheduler: lost; expected it to answer"):
        two_tasks()
