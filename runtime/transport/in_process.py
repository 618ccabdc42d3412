"""Thread ranks: threads of one process that hand tensors over by copying them.

::

    rank 0: send(a) ──┐ both are posted: a is copied into b
    rank 1: recv(b) ──┘

On a CPU the copy is made at once by whoever posts second, or after the time that a slowed link
takes; on a GPU on the receiver's copy stream, ordered by events: no host waits for a copy.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from ..cuda import make_event, make_stream
from .base import Fault, Routes, Transport, timed_out

if TYPE_CHECKING:
    from .replica_faults import ReplicaFaults

# sending rank, receiving rank, bytes: the milliseconds for which the message has the link to itself
LinkTime: TypeAlias = Callable[[int, int, int], float]


class InProcessHandle:
    """A posted message; keeps its tensor. ``ready``: from when on a GPU may read or write it."""

    __slots__ = ("_done", "_error", "_event", "_patience", "_what", "ready", "tensor")

    def __init__(
        self, tensor: Tensor, what: str, patience: float, ready: torch.cuda.Event | None
    ) -> None:
        self.tensor, self._what, self._patience = tensor, what, patience
        self._done, self._error = threading.Event(), ""
        self._event: torch.cuda.Event | None = None
        self.ready = ready

    def wait(self) -> None:
        if not self._done.wait(self._patience):
            raise timed_out(f"{self._what} operation to complete", self._patience)
        if self._error:
            raise ConnectionError(self._error)
        if self._event is not None:
            torch.cuda.current_stream(self.tensor.device).wait_event(self._event)

    def end(self, error: str = "", event: torch.cuda.Event | None = None) -> None:
        self._error, self._event = error, event
        self._done.set()


@dataclass(eq=False)
class _Channel:
    """One direction between two ranks: sends and receives meet in the order of their posts."""

    milliseconds: Callable[[int], float] | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    sends: deque[InProcessHandle] = field(default_factory=deque)
    receives: deque[InProcessHandle] = field(default_factory=deque)
    stream: torch.cuda.Stream | None = None
    slow: SimpleQueue[tuple[InProcessHandle, InProcessHandle] | None] | None = None

    def post(self, mine: deque[InProcessHandle], handle: InProcessHandle) -> None:
        with self.lock:
            mine.append(handle)
            if self.sends and self.receives:
                self._meet(self.sends.popleft(), self.receives.popleft())

    def end(self, error: str) -> None:
        with self.lock:
            for handle in (*self.sends, *self.receives):
                handle.end(error)
            if self.slow is not None:
                self.slow.put(None)

    def _meet(self, sent: InProcessHandle, received: InProcessHandle) -> None:
        if self.milliseconds is None:
            self._copy(sent, received)
            return
        if self.slow is None:
            self.slow = SimpleQueue()
            threading.Thread(target=self._carry, args=(self.slow,), daemon=True).start()
        self.slow.put((sent, received))

    def _carry(self, pairs: SimpleQueue[tuple[InProcessHandle, InProcessHandle] | None]) -> None:
        """The slowed link: one message at a time."""
        assert self.milliseconds is not None
        while (pair := pairs.get()) is not None:
            time.sleep(self.milliseconds(pair[0].tensor.nbytes) / 1e3)
            self._copy(*pair)

    def _copy(self, sent: InProcessHandle, received: InProcessHandle) -> None:
        source, target = sent.tensor, received.tensor
        if (source.nbytes, source.dtype) != (target.nbytes, target.dtype):
            received.end(f"a message of {_size(source)} came, expected {_size(target)}")
            sent.end()
            return
        event = None
        with torch.no_grad():
            if sent.ready is None or received.ready is None:
                target.view(-1).copy_(source.view(-1))
            else:
                event = self._copy_on_stream(sent, received)
        for handle in (sent, received):
            handle.end(event=event)

    def _copy_on_stream(self, sent: InProcessHandle, received: InProcessHandle) -> torch.cuda.Event:
        device = received.tensor.device
        if self.stream is None:
            self.stream = make_stream(device, first=True)
        for handle in (sent, received):
            assert handle.ready is not None
            self.stream.wait_event(handle.ready)
        with torch.cuda.stream(self.stream):
            received.tensor.view(-1).copy_(sent.tensor.view(-1), non_blocking=True)
        event = make_event(timed=False)
        event.record(self.stream)
        return event


class Hub:
    """The meeting point of one process's thread ranks. ``link_time``: slowed links, on a CPU
    only."""

    def __init__(self, size: int, link_time: LinkTime | None = None) -> None:
        self.size = size
        self._link_time = link_time
        self._lock = threading.Lock()
        self._error = ""
        self._fault: Fault | None = None
        self._barriers: dict[Hashable, threading.Barrier] = {}
        self._values: defaultdict[Hashable, dict[int, Any]] = defaultdict(dict)
        self._channels: dict[tuple[int, int, int], _Channel] = {}
        self._sessions: defaultdict[int, int] = defaultdict(int)

    def session(self, rank: int) -> int:
        """The number of a rank's next transport: all ranks make theirs in one order."""
        with self._lock:
            self._sessions[rank] += 1
            return self._sessions[rank]

    def channel(self, session: int, source: int, target: int) -> _Channel:
        with self._lock:
            if self._error:
                raise ConnectionError(self._error)
            key = session, source, target
            if key not in self._channels:
                self._channels[key] = _Channel(self._time(source, target))
            return self._channels[key]

    def exchange(
        self, key: Hashable, rank: int, members: tuple[int, ...], value: Any, patience: float
    ) -> list[Any]:
        """The values that ``members`` passed, in their order; each calls it with the same key."""
        with self._lock:
            if self._error:
                raise ConnectionError(self._error)
            barrier = self._barriers.setdefault((key, members), threading.Barrier(len(members)))
            self._values[key, members][rank] = value
        try:
            barrier.wait(patience)
            values = [self._values[key, members][member] for member in members]
            barrier.wait(patience)
        except threading.BrokenBarrierError:
            if self._error:
                raise ConnectionError(self._error) from None
            there = self._values[key, members]
            absent = [member for member in members if member not in there]
            raise timed_out(f"rank {', '.join(map(str, absent))}", patience) from None
        del self._values[key, members][rank]
        return values

    def fail(self, error: str, fault: Fault | None = None) -> Fault | None:
        """Ends all waits, on every rank, now and from now on: a rank is gone.

        The first fault of all is returned.
        """
        with self._lock:
            self._error = self._error or error
            first = self._fault = self._fault or fault
            barriers, channels = [*self._barriers.values()], [*self._channels.values()]
        for barrier in barriers:
            barrier.abort()
        for channel in channels:
            channel.end(error)
        return first

    def _time(self, source: int, target: int) -> Callable[[int], float] | None:
        link_time = self._link_time
        return None if link_time is None else lambda size: link_time(source, target, size)


class InProcessTransport:
    """One thread rank's transport; of a hub of one where a process is alone."""

    def __init__(self, hub: Hub, rank: int, routes: Routes) -> None:
        self.rank, self.size = rank, hub.size
        self.replicas: ReplicaFaults | None = None
        self._hub, self._session = hub, hub.session(rank)
        self._patience = routes.timeout.total_seconds()
        self._everyone = tuple(range(hub.size))
        self._free: dict[int, torch.cuda.Event] = {}  # after a buffer's last read, by its place

    def send(self, tensor: Tensor, peer: int) -> InProcessHandle:
        channel = self._channel(self.rank, peer)
        handle = InProcessHandle(tensor, "send", self._patience, recorded(tensor))
        channel.post(channel.sends, handle)
        return handle

    def recv(self, buffer: Tensor, peer: int) -> InProcessHandle:
        channel = self._channel(peer, self.rank)
        # its first use comes after whatever the memory held before
        ready = self._free.pop(buffer.data_ptr(), None) or recorded(buffer)
        handle = InProcessHandle(buffer, "recv", self._patience, ready)
        channel.post(channel.receives, handle)
        return handle

    def releasing(self, buffer: Tensor) -> Callable[[], None] | None:
        return partial(self._release, buffer) if buffer.device.type == "cuda" else None

    def _release(self, buffer: Tensor) -> None:
        event = recorded(buffer)
        assert event is not None
        self._free[buffer.data_ptr()] = event

    def renew(self) -> None:
        self._free.clear()

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        """Every rank sums in the order of ranks: the same result on each."""
        values = self._exchange("sum", ranks, (tensor, recorded(tensor)))
        follow(tensor.device, [ready for _, ready in values])
        first, *others = [value.detach() for value, _ in values]
        total = first.clone()  # a sum from 0 on would lose the sign of what is -0 on all of them
        for other in others:
            total += other
        # nobody changes its tensor before all have read it
        follow(tensor.device, self._exchange("summed", ranks, recorded(tensor)))
        with torch.no_grad():
            tensor.copy_(total)

    def share(self, value: Any, source: int) -> Any:
        return self.gather(value)[source]

    def gather(self, value: Any) -> list[Any]:
        return self._exchange("gather", self._everyone, value)

    def barrier(self) -> None:
        self._exchange("barrier", self._everyone, None)

    def fail(self, fault: Fault, *, asks: bool) -> Fault:
        first = self._hub.fail(fault.text, fault) if self.size > 1 else None
        return first if first is not None and asks else fault

    def attach(self, other: Transport) -> None:
        pass  # all waits are the hub's

    def clock_offset(self) -> float:
        return 0.0

    def beside(self, routes: Routes) -> InProcessTransport:
        return InProcessTransport(self._hub, self.rank, routes)

    def close(self) -> None:
        pass

    def _channel(self, source: int, target: int) -> _Channel:
        if source == target or not 0 <= source < self.size or not 0 <= target < self.size:
            raise ValueError(f"rank {self.rank} has no message from rank {source} to {target}")
        return self._hub.channel(self._session, source, target)

    def _exchange(self, what: str, ranks: tuple[int, ...], value: Any) -> list[Any]:
        return self._hub.exchange((self._session, what), self.rank, ranks, value, self._patience)


def recorded(tensor: Tensor) -> torch.cuda.Event | None:
    """An event after all that is queued so far on a GPU's current stream."""
    if tensor.device.type != "cuda":
        return None
    event = make_event(timed=False)
    event.record(torch.cuda.current_stream(tensor.device))
    return event


def follow(device: torch.device, events: Iterable[torch.cuda.Event | None]) -> None:
    """Makes the current stream wait for them; the host goes on."""
    for event in events:
        if event is not None:
            torch.cuda.current_stream(device).wait_event(event)


def _size(tensor: Tensor) -> str:
    return f"{tensor.nbytes} bytes" + (
        f" of {str(tensor.dtype).removeprefix('torch.')}" if tensor.dtype is not torch.uint8 else ""
    )
