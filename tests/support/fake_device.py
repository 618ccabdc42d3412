"""A simulated device whose streams run in any legal order.

Streams are queues of work. Nothing runs while the host fills them; afterwards, a random stream
whose first item does not wait for an event runs next.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

DEVICE = torch.device("cuda", 0)
HERE = threading.local()


class Stream:
    def __init__(self, device: Device) -> None:
        self.queue: deque[Callable[[], bool]] = deque()
        device.streams.append(self)

    def does(self, work: Callable[[], None]) -> None:
        self.queue.append(lambda: work() is None)

    def wait_event(self, event: Event) -> None:
        record = event.record_now
        assert record is not None, "waits for an event that nobody recorded"
        self.queue.append(lambda: bool(record))

    def wait_stream(self, other: Stream) -> None:
        event = Event()
        event.record(other)
        self.wait_event(event)


class Event:
    """``record_now``: the last record; it becomes non-empty when a stream reaches it."""

    record_now: list[bool] | None = None

    def record(self, stream: Stream) -> None:
        reached: list[bool] = []
        self.record_now = reached
        stream.queue.append(lambda: reached.append(True) is None)

    def synchronize(self) -> None:
        assert self.record_now, "not reached yet"


class Device:
    """Has the methods of :class:`pipeloom.runtime.device.Device`; ``compute`` is current."""

    device, is_host = DEVICE, False

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.compute = self.stream()

    def stream(self) -> Stream:
        return Stream(self)

    def event(self, *, timed: bool = False) -> Event:
        assert not timed
        return Event()

    def use(self, stream: Stream) -> AbstractContextManager[None]:
        return on(stream)

    def current(self) -> Stream:
        return self.compute

    def run(self, seed: int) -> None:
        """Run all work. Fails if streams wait for each other."""
        chance = random.Random(seed)
        while waiting := [stream for stream in self.streams if stream.queue]:
            chance.shuffle(waiting)
            moved = next((s for s in waiting if s.queue[0]()), None)
            assert moved is not None, "streams wait for each other"
            moved.queue.popleft()


class Memory:
    """A tensor with only what the transport uses; ``value`` is copied when the device runs."""

    device, dtype, nbytes = DEVICE, torch.float32, 4

    def __init__(self) -> None:
        self.value = -1

    def data_ptr(self) -> int:
        return id(self)

    def view(self, *_: int) -> Memory:
        return self

    def copy_(self, other: Memory, non_blocking: bool) -> None:
        assert non_blocking

        def copy() -> None:
            self.value = other.value

        HERE.stream.does(copy)


@contextmanager
def on(stream: Stream) -> Iterator[None]:
    outside, HERE.stream = getattr(HERE, "stream", None), stream
    yield
    HERE.stream = outside
