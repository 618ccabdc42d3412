"""Requests to the key-value store of ``torch.distributed``, with a time limit.

If the process that serves the store is stopped, torch waits forever: after its own timeout, it
asks the store to cancel the request and waits for the answer. So each request runs in a separate
thread, which is abandoned if it takes too long.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store as TorchStore
from torch.distributed.rendezvous import rendezvous as torchs_rendezvous

from ..errors import ExecutionError

PATIENCE = 1.0  # seconds that a rank has to publish an error or to answer
LINGER = 1.0  # maximum seconds for which the rank that serves the store stays for the others
THREAD = "rank asks the store"  # the command line recognizes abandoned threads by "rank "
SLACK = 0.25  # seconds by which torch's calls may exceed their timeout
LATE = PATIENCE - SLACK  # seconds to publish an error after a call has exceeded its timeout
GROUP = "a process group to be made"
SHORTEST_PAUSE, LONGEST_PAUSE = 1e-3, 0.05  # seconds between two checks
_Found = TypeVar("_Found")
_left: list[Thread] = []  # the last abandoned thread; until it ends, torch blocks other requests


class StoreLostError(ExecutionError, ConnectionError):
    """The store does not answer: the process that serves it has ended or is stopped."""

    def __init__(self) -> None:
        super().__init__(
            f"{_server()}, which serves the store of torch.distributed, does not answer"
        )


def within(
    seconds: float,
    call: Callable[[], _Found],
    what: str = "",
    look: Callable[[], object] | None = None,
) -> _Found:
    """Runs ``call``, a request to the store, in a thread; returns its result or raises its error.

    ``look`` is called repeatedly in the meantime, and may raise. After ``seconds``, raises
    TimeoutError if the text ``what`` describes what is waited for, and StoreLostError if ``what``
    is empty. Raises StoreLostError immediately if an abandoned thread is still waiting for the
    store.
    """
    if _left and _left[0].is_alive():
        raise StoreLostError
    future: Future[_Found] = Future()
    thread = Thread(target=_answer, args=(future, call), daemon=True, name=THREAD)
    thread.start()
    end = time.monotonic() + seconds
    while not future.done() and (left := end - time.monotonic()) > 0:
        wait([future], left if look is None else min(left, LONGEST_PAUSE))
        if look is not None and not future.done():
            look()
    if future.done():
        return future.result()
    if what:
        raise timed_out(what, seconds)
    _left[:] = [thread]
    raise StoreLostError


def _answer(future: Future[_Found], call: Callable[[], _Found]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)


def rendezvous(rank: int, size: int, seconds: float) -> TorchStore:
    """Returns the store that torchrun's environment variables describe, within ``seconds``.

    Rank 0 serves the store if torchrun does not. torch's own function would wait for all ranks,
    without naming the missing ones. Raises ExecutionError if there is no connection.
    """
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    patience = timedelta(seconds=seconds)

    def make() -> TorchStore:
        if _a_rank_serves():
            return TCPStore(*place, size, rank == 0, patience, wait_for_workers=False)
        store: TorchStore
        store, _, _ = next(torchs_rendezvous("env://", timeout=patience))
        return store

    try:
        return within(seconds + SLACK, make)
    except dist.DistError as error:
        why = in_short(str(error)).partition("\n")[0]
        served = f"the store that {_server()} serves at {place[0]}:{place[1]}"
        raise ExecutionError(f"{served}: {why}") from error


class Store:
    """Requests to torch's ``store``, which raise StoreLostError after a time limit.

    ``seconds``: the time limit for all requests together, until :meth:`allow` sets another one.
    ``whole``: torch's store. Requests use a connection of their own, as torch blocks other
    connections while it waits for a process group to be created.
    """

    def __init__(self, store: TorchStore, seconds: float) -> None:
        self.whole = store
        self.allow(seconds)
        self._own: TorchStore = self._ask(store.clone)  # type: ignore[attr-defined]

    def allow(self, seconds: float) -> None:
        """Sets the time limit for all later requests: together, they may take ``seconds``."""
        self._end = time.monotonic() + seconds

    def set(self, key: str, value: str = "") -> None:
        self._ask(self._own.set, key, value)

    def get(self, key: str) -> str:
        found: bytes = self._ask(self._own.get, key)
        return found.decode()

    def add(self, key: str, amount: int) -> int:
        return self._ask(self._own.add, key, amount)

    def has(self, *keys: str) -> bool:
        return self._ask(self._own.check, list(keys))

    def put_first(self, key: str, value: str) -> str:
        """Sets the key to ``value`` if it has no value yet; returns the value that it has then."""
        found: bytes = self._ask(self._own.compare_set, key, "", value)
        return found.decode()

    def _ask(self, call: Callable[..., _Found], *args: Any) -> _Found:
        try:
            return within(self._end - time.monotonic(), partial(call, *args))
        except RuntimeError as error:  # torch's error for a lost connection
            raise StoreLostError from error

    def missing(
        self,
        key: str,
        ranks: Sequence[int],
        seconds: float,
        *,
        most: int = 0,
        look: Callable[[], object] | None = None,
    ) -> list[int]:
        """Waits until all ``ranks`` have set their key ``{key}/{rank}``; returns the missing ranks.

        Returns earlier if at most ``most`` ranks are missing, or after ``seconds``. ``look`` is
        called repeatedly in the meantime, and may raise.
        """
        end, pause, left = time.monotonic() + seconds, SHORTEST_PAUSE, list(ranks)
        while left and not self.has(*(f"{key}/{r}" for r in left)):
            left = [r for r in left if not self.has(f"{key}/{r}")]
            if len(left) <= most or time.monotonic() > end:
                return left
            if look is not None:
                look()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return []


def _a_rank_serves() -> bool:
    """Whether rank 0 serves the store, and not the process that started the ranks (torchrun)."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def this_rank_serves() -> bool:
    """Whether this process serves the store."""
    if not _a_rank_serves():
        return False
    return (dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])) == 0


def _server() -> str:
    return "rank 0" if _a_rank_serves() else "the process that started the ranks"


def timed_out(what: str, seconds: float) -> TimeoutError:
    """Returns the error of a wait for ``what`` that timed out, worded like torch's."""
    return TimeoutError(f"Timed out waiting {seconds * 1e3:.0f}ms for {what}")


def in_short(text: str) -> str:
    """Returns torch's error message without source locations and guesses about causes."""
    return re.sub(r"\[/\S+:\d+\] |\. This (is typically|may indicate)[\s\S]*", "", text)
