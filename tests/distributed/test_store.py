"""Ranks that do not come are named by those that wait for them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pipeloom.runtime import ExecutionError, launch_ranks
from tests.support.inside import making, processes, store


def test_ranks_that_do_not_start_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 of two, the other one of which never comes; then rank 1, without who serves."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    missed = r"^rank 1: not there where all ranks start, waited at most 1 s$"
    lost = rf"^the store that rank 0 serves at 127\.0\.0\.1:{port}: "
    for rank, line in enumerate((missed, lost)):
        given = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
        for name, value in {**given, "MASTER_PORT": port if rank else 0}.items():
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
    """Rank 0 waits where all are to be, rank 1 is late, and rank 2 never comes. Then rank 0 has
    lost its connection to it."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # nobody lingers
    lost = Future[None]()
    lost.set_exception(RuntimeError("Connection closed by peer [127.0.0.1]:1"))
    said = ends(0.5, lambda made: made.exchange(None), lambda _: time.sleep(1.9))
    line = "rank 2: not there where all ranks make their Pipeline, waited at most 0.5 s"
    assert said == [(line, 2)] * 2
    said = ends(9.0, lambda _: lost.result(), lambda made: made.exchange(0))
    line = "rank 0: RuntimeError: Connection closed by peer [127.0.0.1]:1; no answer from rank 2"
    assert said == [(line, 2)] * 2
