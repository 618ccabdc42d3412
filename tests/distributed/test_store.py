"""Ranks end in time where the store of ``torch.distributed`` does not answer."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest

from pipeloom.cli import main
from pipeloom.cli.failures import INTERRUPTED
from pipeloom.runtime import ExecutionError, launch_ranks
from pipeloom.runtime.launch import processes
from pipeloom.runtime.transport import making, store
from tests.distributed.cases.store import MOMENTS, stopped_server
from tests.failures.cases import RANKS
from tests.support.launched import until

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


def test_a_call_without_an_answer_is_given_up_and_the_next_at_once() -> None:
    """Which asks nothing, for far longer than a test may take."""
    answer, ended = Event(), Event()
    try:
        for seconds in (0.1, 1e6):
            with pytest.raises(store.StoreLostError, match=SERVER):
                store.within(seconds, lambda: answer.wait() and ended.set())
    finally:
        answer.set()
    until(ended.is_set)
    until(lambda: answers() == 3)
    late = Event()
    with pytest.raises(TimeoutError, match="Timed out waiting 100ms for a group"):
        store.within(0.1, late.wait, "a group")  # not the store's fault
    late.set()
    assert answers() == 3


def answers() -> int | None:
    """What a call says, if the store is not given up for one before it."""
    with suppress(store.StoreLostError):
        return store.within(60.0, lambda: 3)
    return None


@pytest.mark.usefixtures("ctrl_c")
def test_what_a_rank_asks_ends_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, by the command's exit code: Python's own end aborted (-6)."""
    done = Event()
    monkeypatch.setattr(main, "main", lambda told: INTERRUPTED)
    monkeypatch.setattr(os, "_exit", _leave)
    try:
        with pytest.raises(store.StoreLostError):
            store.within(0.01, done.wait)
        with pytest.raises(_Left, match=r"^130$"):
            main.command()
    finally:
        done.set()


class _Left(BaseException):
    """The process's end without Python's."""


def _leave(code: int) -> None:
    raise _Left(code)
