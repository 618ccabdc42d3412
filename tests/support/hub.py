"""Ranks that are threads of the test's process; one runs until it waits for others.

::

    rank 0: send(a) ──┐ both are posted: a is copied into b
    rank 1: recv(b) ──┘

``Pipeline(..., transport=own())`` gives a pipeline the transport of its rank. Since no two ranks
run at the same time, they can share state of the process, such as the patches of tracing. It starts
immediately, while processes take seconds.
"""

from __future__ import annotations

import pickle
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeloom.ir import PipeloomError, in_words, of_rank
from pipeloom.runtime import LaunchError, Routes, Transport
from tests.support.inside import RankFault, timed_out

_HERE = threading.local()


def own() -> Transport | None:
    """The transport of the rank that runs in this thread; None for other threads."""
    return getattr(_HERE, "transport", None)


@dataclass(eq=False)
class HubHandle:
    """A message; it is ``done`` when both ends are posted."""

    hub: Hub
    tensor: Tensor
    what: str
    seconds: float
    done: bool = False

    def wait(self) -> None:
        self.hub.wait_for(lambda: self.done, f"{self.what} operation to complete", self.seconds)


@dataclass
class Channel:
    """One direction between two ranks: sends and receives are matched in the order of their
    posts."""

    sends: deque[HubHandle] = field(default_factory=deque)
    receives: deque[HubHandle] = field(default_factory=deque)


class Hub:
    """The matching of all ranks' messages. The rank that holds ``turn`` runs."""

    def __init__(self, size: int) -> None:
        self.size, self.turn = size, threading.Condition()
        self.fault: RankFault | None = None
        self.channels: defaultdict[Hashable, Channel] = defaultdict(Channel)
        self.values: defaultdict[Hashable, dict[int, bytes]] = defaultdict(dict)

    def wait_for(self, ready: Callable[[], bool], what: str, seconds: float) -> None:
        """Let other ranks run until ``ready`` returns true. Each rank has its own random
        numbers."""
        drawn = torch.get_rng_state()
        self.turn.notify_all()
        self.turn.wait_for(lambda: ready() or self.fault is not None, seconds)
        torch.set_rng_state(drawn)
        if not ready():
            if self.fault is not None:
                raise ConnectionError(self.fault.text)
            raise timed_out(what, seconds)

    def post(self, key: Hashable, handle: HubHandle) -> HubHandle:
        channel = self.channels[key]
        (channel.sends if handle.what == "send" else channel.receives).append(handle)
        while channel.sends and channel.receives:
            sent, received = channel.sends.popleft(), channel.receives.popleft()
            assert sent.tensor.dtype is received.tensor.dtype
            assert sent.tensor.nbytes == received.tensor.nbytes
            with torch.no_grad():
                received.tensor.view(-1).copy_(sent.tensor.view(-1))
            sent.done = received.done = True
        return handle


class HubTransport(Transport):
    """The transport of one rank. Transports that ranks open in the same order are connected."""

    def __init__(self, hub: Hub, rank: int, routes: Routes) -> None:
        self.rank, self.size = rank, hub.size
        self._hub, self._seconds = hub, routes.timeout.total_seconds()
        self._session: tuple[int, ...] = ()
        self._beside, self._meetings = 0, defaultdict[tuple[int, ...], int](int)

    def send(self, tensor: Tensor, peer: int) -> HubHandle:
        handle = HubHandle(self._hub, tensor, "send", self._seconds)
        return self._hub.post((self._session, self.rank, peer), handle)

    def recv(self, buffer: Tensor, peer: int) -> HubHandle:
        handle = HubHandle(self._hub, buffer, "recv", self._seconds)
        return self._hub.post((self._session, peer, self.rank), handle)

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        first, *others = self._exchange(tensor.detach(), ranks)
        for other in others:
            first += other
        with torch.no_grad():
            tensor.copy_(first)

    def share(self, value: Any, source: int) -> Any:
        return self.gather(value)[source]

    def gather(self, value: Any) -> list[Any]:
        return self._exchange(value, tuple(range(self.size)))

    def barrier(self) -> None:
        self.gather(None)

    def fail(self, fault: RankFault, *, asks: bool) -> RankFault:
        self._hub.fault = self._hub.fault or fault
        self._hub.turn.notify_all()
        return self._hub.fault if asks else fault

    def beside(self, routes: Routes) -> HubTransport:
        self._beside += 1
        other = HubTransport(self._hub, self.rank, routes)
        other._session = (*self._session, self._beside)
        return other

    def _exchange(self, value: Any, ranks: tuple[int, ...]) -> list[Any]:
        """The ranks' values, copied as between processes."""
        self._meetings[ranks] += 1
        values = self._hub.values[self._session, ranks, self._meetings[ranks]]
        values[self.rank] = pickle.dumps(value)
        absent = [rank for rank in ranks if rank not in values]
        names = f"rank {', '.join(map(str, absent))}"
        self._hub.wait_for(lambda: len(values) == len(ranks), names, self._seconds)
        return [pickle.loads(values[rank]) for rank in ranks]


def on_threads(
    function: Callable[..., Any], ranks: int, args: Sequence[Any] = (), *, timeout: float = 120.0
) -> dict[int, Any]:
    """Call ``function(*args)`` on each rank; returns the results. Raises LaunchError for the first
    failure."""
    hub = Hub(ranks)
    results: dict[int, Any] = {}
    failed: list[tuple[int, BaseException, str]] = []

    def run(rank: int) -> None:
        with hub.turn:
            transport = _HERE.transport = HubTransport(hub, rank, Routes.of((), (), timeout))
            try:
                results[rank] = function(*args)
            except BaseException as error:
                failed.append((rank, error, traceback.format_exc()))
                transport.fail(RankFault(rank, "", f"rank {rank} has ended"), asks=False)
            hub.turn.notify_all()

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    if failed:
        rank, error, details = failed[0]
        rank = getattr(error, "rank", rank)
        code = error.exit_code if isinstance(error, PipeloomError) else 1
        raise LaunchError(
            of_rank(rank, in_words(error)), rank=rank, details=details, exit_code=code
        )
    assert len(results) == ranks, f"no answer in time from all but ranks {[*results]}"
    return results
