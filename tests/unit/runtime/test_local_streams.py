"""Messages between virtual ranks of a GPU: what the host tells the device is right in whatever order it is run,
and can be recorded as a graph.

The device is made up. Streams are queues of work that nothing runs while the hosts queue it; afterwards
any stream whose head waits for no event may go on, by chance.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch

from pipeloom.runtime import graph
from pipeloom.runtime.graph import SharedRecording
from pipeloom.runtime.transport import Routes, local
from pipeloom.runtime.transport.local import Hub, LocalTransport

DEVICE = torch.device("cuda", 0)
HERE = threading.local()


class Stream:
    """``graph``: the one that records it, None where its work is to run; ``past``: what of the graph comes before."""

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


class Event:
    """``record_now``: the last record, which becomes true when a stream comes to it."""

    record_now: list[bool] | None = None

    def record(self, stream: Stream) -> None:
        reached: list[bool] = []
        self.record_now = reached
        stream.queue.append(lambda: reached.append(True) is None)
        self.graph, self.past = stream.graph, {*stream.past}


class Graph:
    """What CUDA asks of a recording: begun on one stream, others join by events and come back to it."""

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
    """A tensor as far as the transport knows one; ``value`` is what is there when the device comes by."""

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
def _on(stream: Stream) -> Iterator[None]:
    outside, HERE.stream = getattr(HERE, "stream", None), stream
    yield
    HERE.stream = outside


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(local, "make_stream", lambda _, first: Stream(device))
    monkeypatch.setattr(local, "make_event", lambda timed: Event())
    monkeypatch.setattr(torch.cuda, "stream", _on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: HERE.stream)
    return device


RANKS, MESSAGES = 3, 8


class Rank:
    """Receives ``MESSAGES`` numbers into two buffers in turn, adds one and sends them on from memory that is used again."""

    def __init__(self, hub: Hub, rank: int, device: Device, graph: Graph | None = None) -> None:
        pairs = [(r, r + 1) for r in range(RANKS - 1)]
        self.between: Any = LocalTransport(hub, rank, Routes.of(pairs, (), 10.0))
        self.graph, self.buffers = graph, [Memory(), Memory()]
        self.rank, self.stream = rank, Stream(device)
        self.seen: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with _on(self.stream):
                self._steps()
                if self.graph is not None:
                    self._recorded(self.graph)
        except BaseException as error:
            self.error = error

    def _recorded(self, graph: Graph) -> None:
        """The steps once more, as a graph."""
        self.between.renew()
        recording = SharedRecording(self.between, DEVICE, graph if self.rank == 0 else None)
        recording.begin()
        self._steps()
        recording.end()

    def _steps(self) -> None:
        buffers, outputs = self.buffers, [Memory(), Memory()]
        release = [self.between.releasing(buffer) for buffer in buffers]
        sent: list[Any] = [None, None]
        coming = [self._post(buffer) for buffer in buffers]
        for i in range(MESSAGES):
            at = i % 2
            buffer, output, message = buffers[at], outputs[at], coming[at]
            if message is not None:
                message.wait()
            if sent[at] is not None:
                sent[at].wait()  # its memory is used again
            self.stream.does(self._forward(i, buffer, output))
            release[at]()
            coming[at] = self._post(buffer) if i + 2 < MESSAGES else None
            if self.rank + 1 < RANKS:
                sent[at] = self.between.send(output, self.rank + 1)
        for handle in sent:
            if handle is not None:
                handle.wait()

    def _post(self, buffer: Memory) -> Any:
        return self.between.recv(buffer, self.rank - 1) if self.rank > 0 else None

    def _forward(self, i: int, buffer: Memory, output: Memory) -> Callable[[], None]:
        def forward() -> None:
            given = 100 * i if self.rank == 0 else buffer.value
            self.seen.append(given)
            output.value = given + 1

        return forward


@pytest.mark.parametrize("seed", range(20))
def test_every_message_is_the_right_one_whatever_stream_goes_on_first(
    device: Device, seed: int
) -> None:
    hub = Hub(RANKS)
    ranks = _run([Rank(hub, rank, device) for rank in range(RANKS)])
    device.run(seed)
    for rank in ranks:
        assert rank.seen == [100 * i + rank.rank for i in range(MESSAGES)]


def _run(ranks: list[Rank]) -> list[Rank]:
    threads = [threading.Thread(target=rank.run) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [rank.error for rank in ranks] == [None] * RANKS
    return ranks


def test_all_streams_join_the_graph_and_come_back(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "make_event", lambda timed: Event())
    recorded, hub = Graph(), Hub(RANKS)
    _run([Rank(hub, rank, device, recorded) for rank in range(RANKS)])
    copies = MESSAGES * (RANKS - 1)
    assert recorded.nodes == MESSAGES * RANKS + copies
    assert all(stream.graph is recorded for stream in device.streams)
