"""Ranks end in time where the store of ``torch.distributed`` does not answer."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch.distributed as dist

from pipeloom.__main__ import command
from pipeloom.runtime import ExecutionError, Pipeline, launch_ranks
from tests.failures.cases import RANKS, Odd, linears, made, squared, step
from tests.support.inside import making, process_group, processes, store
from tests.support.processes import until


def makes_none(patience: float) -> None:
    if dist.get_rank() == 0:
        _stop()
        return
    _pipeline(patience)


def does_not_connect(patience: float) -> None:
    real = process_group.new_group
    if dist.get_rank() == 0:
        process_group.new_group = lambda *_: _stop()  # type: ignore[assignment, return-value]
    try:
        _pipeline(patience)
    finally:
        process_group.new_group = real


def stops_in_a_step(patience: float) -> None:
    step(_pipeline(patience), RANKS * 2)


MOMENTS: list[Callable[[float], None]] = [makes_none, does_not_connect, stops_in_a_step]


def _stop(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _pipeline(patience: float) -> Pipeline:
    first, *others = linears(RANKS)
    stages = [Odd(_stop) if patience < 60.0 else first, *others]
    return Pipeline(made(), stages, loss=squared, timeout=patience)


def stopped_server(
    folder: Path, patience: float, moments: list[Callable[[float], None]]
) -> list[str]:
    """Of each of ``moments`` what this rank raises."""
    step(_pipeline(60.0), RANKS * 2)  # imports take seconds
    return [_at(moment, folder / moment.__name__, patience) for moment in moments]


def _at(moment: Callable[[float], None], folder: Path, patience: float) -> str:
    _meet_anew(folder)
    pids = [0] * RANKS
    dist.all_gather_object(pids, os.getpid())
    said = ""
    try:
        moment(patience)
    except Exception as error:
        said = str(error)
    rank = dist.get_rank()
    (folder / str(rank)).touch()
    if rank == RANKS - 1:
        until(lambda: all((folder / str(other)).exists() for other in range(1, RANKS)))
        os.kill(pids[0], signal.SIGCONT)
    until((folder / "0").exists)
    return said


def _meet_anew(folder: Path) -> None:
    """In a store that rank 0 serves, as where neither torchrun nor a launch of ours does."""
    rank = dist.get_rank()
    if rank == 0:
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            (folder / "port.new").write_text(str(free.getsockname()[1]))
        (folder / "port.new").rename(folder / "port")
    dist.destroy_process_group()
    until((folder / "port").exists)
    os.environ["MASTER_PORT"] = (folder / "port").read_text()
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    making.meet(None, lambda _: "gloo", 30.0)


PATIENCE = 2.0
SERVER = "rank 0, which serves the store of torch.distributed, does not answer"


@pytest.mark.parametrize("moments", [MOMENTS[-1:], pytest.param(MOMENTS, marks=pytest.mark.slow)])
def test_a_rank_0_that_is_stopped_is_named_by_all_in_time(
    tmp_path: Path, moments: list[Callable[[float], None]]
) -> None:
    """Where it serves the store, whose calls torch itself lets wait without end."""
    found = launch_ranks(stopped_server, RANKS, (tmp_path, PATIENCE, moments), timeout=100)
    for i, moment in enumerate(moments):
        for rank in range(1, RANKS):
            assert found[rank][i].endswith(SERVER), (moment.__name__, rank)
            assert "\n" not in found[rank][i]


def test_ranks_that_do_not_start_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 of two, the other one of which never comes; then rank 1, without who serves."""
    monkeypatch.setattr(store, "_left", [])  # of this test
    missed = r"^rank 1: not there where all ranks start, waited at most 1 s$"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for rank, line in enumerate((missed, SERVER)):
            port = silent.getsockname()[1] if rank else 0
            given = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            for name, value in given.items():
                monkeypatch.setenv(name, str(value))
            with pytest.raises(ExecutionError, match=line):
                launch_ranks(print, 2, message_timeout=1.0)


def ends(patience: float, *acts: Callable[[making.Making], object]) -> list[tuple[str, int]]:
    """What ranks that meet say, one act each, and whom they name; one more never comes."""
    served = processes.served_store()

    def said(rank: int) -> tuple[str, int]:
        size = len(acts) + 1
        made = making.Making(store.Store(served, 9.0), rank, size, range(size), patience)
        with pytest.raises(ExecutionError) as raised, making._together(lambda: made):
            acts[rank](made)
        return str(raised.value), raised.value.rank  # type: ignore[attr-defined]

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(said, range(len(acts))))


def test_of_ranks_that_do_not_come_the_one_that_hangs_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 waits where all are to be, rank 1 for a connection, as with one that hangs, rank 2 is
    late, and rank 3 never comes. Then one has lost its connection to it."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # nobody lingers
    never, lost = Event(), Future[None]()
    lost.set_exception(RuntimeError("Connection closed by peer [127.0.0.1]:1"))
    said = ends(
        0.5,
        lambda made: made.exchange(None),
        lambda made: made.connected(never.wait, 9.0),
        lambda made: time.sleep(1.9),
    )
    never.set()
    line = "rank 3: not there where all ranks make their Pipeline, waited at most 0.5 s"
    assert said == [(line, 3)] * 3
    said = ends(9.0, lambda made: made.connected(lost.result, 9.0), lambda made: made.exchange(0))
    line = "rank 0: RuntimeError: Connection closed by peer [127.0.0.1]:1; no answer from rank 2"
    assert said == [(line, 2)] * 2


@pytest.mark.usefixtures("ctrl_c")
def test_what_a_rank_asks_ends_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, by the command's exit code: Python's own end aborted (-6)."""
    done = Event()
    monkeypatch.setattr(sys, "argv", ["pipeloom", "unknown"])
    monkeypatch.setattr(os, "_exit", _leave)
    try:
        with pytest.raises(store.StoreLostError):
            store.within(0.01, done.wait)
        with pytest.raises(_Left, match=r"^2$"):
            command()
    finally:
        done.set()


class _Left(BaseException):
    """The process's end without Python's."""


def _leave(code: int) -> None:
    raise _Left(code)
