"""A made-up device. Streams are queues of work that nothing runs while the hosts queue it;
afterwards any stream whose head waits for no event may go on, by chance. A graph is what CUDA asks
of a recording.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

DEVICE = torch.device("cuda", 0)
HERE = threading.local()


class Stream:
    """``graph``: the one that records it, None where its work is to run; ``past``: what of the
    graph comes before."""

    def __init__(self, device: Device) -> None:
        self.queue: deque[Callable[[], bool]] = deque()
        self.graph: Graph | None = None
        self.past: set[int] = set()
        device.streams.append(self)

    def does(self, work: Callable[[], None]) -> None:
        self.queue.append(lambda: work() is None)
        if self.graph is not None:
            self.past.add(self.graph.node())

    def wait_event(self, event: Event) -> None:
        record = event.record_now
        assert record is not None, "waits for an event that nobody recorded"
        self.queue.append(lambda: bool(record))
        assert self.graph in (None, event.graph), "recorded, waits for what is not in the graph"
        self.graph = event.graph
        self.past |= event.past

    def wait_stream(self, other: Stream) -> None:
        event = Event()
        event.record(other)
        self.wait_event(event)


class Event:
    """``record_now``: the last record, which becomes true when a stream comes to it."""

    record_now: list[bool] | None = None

    def record(self, stream: Stream) -> None:
        reached: list[bool] = []
        self.record_now = reached
        stream.queue.append(lambda: reached.append(True) is None)
        self.graph, self.past = stream.graph, {*stream.past}


class Graph:
    """What CUDA asks of a recording: begun on one stream, others join by events and come back to
    it."""

    def __init__(self) -> None:
        self.nodes = 0
        self._lock = threading.Lock()
        self.log: list[str] = []

    def node(self) -> int:
        with self._lock:
            self.nodes += 1
            return self.nodes

    def within(self) -> AbstractContextManager[object]:
        return nullcontext()

    def begin(self) -> None:
        HERE.stream.graph = self

    def end(self) -> None:
        assert HERE.stream.past == {*range(1, self.nodes + 1)}, "a stream has not come back"

    def launch(self) -> None:
        self.log.append("launched")


class Device:
    def __init__(self) -> None:
        self.streams: list[Stream] = []

    def run(self, seed: int) -> None:
        """Until all is done. Fails where streams wait for each other."""
        chance = random.Random(seed)
        while waiting := [stream for stream in self.streams if stream.queue]:
            chance.shuffle(waiting)
            moved = next((s for s in waiting if s.queue[0]()), None)
            assert moved is not None, "streams wait for each other"
            moved.queue.popleft()


class Memory:
    """A tensor as far as the transport knows one; ``value`` is what is there when the device comes
    by."""

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
