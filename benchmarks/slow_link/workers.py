"""Runs tasks on all ranks of a ring: one process in each namespace, all ended with this one.

The processes take the tasks one after the other, so that torch is loaded and the connections are
made once. What a task's ``run`` returns on each rank comes back.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from pipeloom import PipeloomError

from .measuring import ROUTER
from .network import INTERFACE, Names, address

ROOT = Path(__file__).parents[2]
PORT = 29500  # in namespaces of our own nobody else has it
GRACE = 5.0  # seconds between asking a process to end and ending it


class Task(Protocol):
    """Something that every rank does; it is pickled on its way there, and so is what it returns."""

    def run(self) -> Any: ...


class WorkerError(PipeloomError):
    """A rank failed, or did not answer in time."""

    exit_code = 1


def run_tasks(names: Names, tasks: Sequence[Task], timeout: float) -> list[list[Any]]:
    """The values that each task returned: one list a task, in it one value a rank.

    Raises WorkerError where a rank fails or ``timeout`` seconds are over.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "tasks.pickle")
        given.write_bytes(pickle.dumps(list(tasks)))
        with _processes(names, given) as processes:
            _wait(processes, folder, time.monotonic() + timeout)
        rows = [
            pickle.loads(_answer(folder, rank).read_bytes()) for rank in range(len(names.ranks))
        ]
    return [list(values) for values in zip(*rows, strict=True)]


def _answer(folder: str, rank: int) -> Path:
    return Path(folder, f"answer-{rank}.pickle")


@contextmanager
def _processes(names: Names, tasks: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One a namespace; those that still run at the end are ended."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(len(names.ranks)):
            processes.append(_start(names, rank, tasks))
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(names: Names, rank: int, tasks: Path) -> subprocess.Popen[bytes]:
    module = [sys.executable, "-m", "benchmarks.slow_link.rank"]
    answer = _answer(str(tasks.parent), rank)
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(names.ranks)),
        "MASTER_ADDR": address(0),
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        ROUTER: names.routers[rank],
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    return subprocess.Popen(
        ["ip", "netns", "exec", names.ranks[rank], *module, str(tasks), str(answer)],
        env=environment,
        stdin=subprocess.PIPE,  # never written to: its end tells the rank that we are gone
        stderr=Path(tasks.parent, f"errors-{rank}").open("wb"),
        start_new_session=True,  # Ctrl-C is ours: we end the ranks, then remove the namespaces
    )


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: str, deadline: float) -> None:
    while any(process.poll() is None for process in processes):
        failed = [rank for rank, process in enumerate(processes) if process.poll()]
        if failed:
            raise WorkerError(_why(processes, folder, failed[0]))
        if time.monotonic() > deadline:
            raise WorkerError("the ranks did not answer in time")
        time.sleep(0.1)
    for rank, process in enumerate(processes):
        if process.returncode:
            raise WorkerError(_why(processes, folder, rank))


def _why(processes: Sequence[subprocess.Popen[bytes]], folder: str, rank: int) -> str:
    code = processes[rank].returncode
    ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    lines = Path(folder, f"errors-{rank}").read_text("utf-8", "replace").strip().splitlines()
    return f"rank {rank} ended {ended}{f': {lines[-1]}' if lines else ''}"
