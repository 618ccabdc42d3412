"""Requests to the key-value store of ``torch.distributed``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store as TorchStore
from torch.distributed.rendezvous import rendezvous as torchs_rendezvous

from ..errors import ExecutionError

PATIENCE = 1.0  # seconds that a rank has to publish an error or to answer
LINGER = 1.0  # maximum seconds for which the rank that serves the store stays for the others
SHORTEST_PAUSE, LONGEST_PAUSE = 1e-3, 0.05  # seconds between two checks
_Found = TypeVar("_Found")


class StoreLostError(ExecutionError, ConnectionError):
    """The store does not answer: the process that serves it has ended."""

    def __init__(self) -> None:
        super().__init__(
            f"{_server()}, which serves the store of torch.distributed, does not answer"
        )


def rendezvous(rank: int, size: int, seconds: float) -> TorchStore:
    """Returns the store that torchrun's environment variables describe, within ``seconds``.

    Rank 0 serves the store if torchrun does not. torch's own function would wait for all ranks,
    without naming the missing ones. Raises ExecutionError if there is no connection.
    """
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    patience = timedelta(seconds=seconds)
    try:
        if _a_rank_serves():
            return TCPStore(*place, size, rank == 0, patience, wait_for_workers=False)
        store: TorchStore
        store, _, _ = next(torchs_rendezvous("env://", timeout=patience))
        return store
    except dist.DistError as error:
        why = in_short(str(error)).partition("\n")[0]
        served = f"the store that {_server()} serves at {place[0]}:{place[1]}"
        raise ExecutionError(f"{served}: {why}") from error


class Store:
    """Requests to torch's ``store``, which raise StoreLostError if the store is lost.

    ``seconds``: the time limit of each request, until :meth:`allow` sets another one. ``whole``:
    torch's store, whose time limit stays as it is.
    """

    def __init__(self, store: TorchStore, seconds: float) -> None:
        self.whole = store
        self._own: TorchStore = self._ask(store.clone)  # type: ignore[attr-defined]
        self.allow(seconds)

    def allow(self, seconds: float) -> None:
        """Sets the time limit of each later request."""
        self._own.set_timeout(timedelta(seconds=seconds))

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
            return call(*args)
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
