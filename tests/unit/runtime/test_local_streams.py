"""Messages between virtual ranks of a GPU: what the host tells the device is right in whatever order it is run.

The device is made up. Streams are queues of work that nothing runs while the hosts queue it; afterwards
any stream whose head waits for no event may go on, by chance.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pipeloom.runtime.transport import Routes, local
from pipeloom.runtime.transport.local import Hub, LocalTransport

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


class Event:
    """``record_now``: the last record, which becomes true when a stream comes to it."""

    record_now: list[bool] | None = None

    def record(self, stream: Stream) -> None:
        reached: list[bool] = []
        self.record_now = reached
        stream.does(lambda: reached.append(True))


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

    def __init__(self, hub: Hub, rank: int, device: Device) -> None:
        pairs = [(r, r + 1) for r in range(RANKS - 1)]
        self.between: Any = LocalTransport(hub, rank, Routes.of(pairs, (), 10.0))
        self.rank, self.stream = rank, Stream(device)
        self.seen: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with _on(self.stream):
                self._steps()
        except BaseException as error:
            self.error = error

    def _steps(self) -> None:
        buffers, outputs = [Memory(), Memory()], [Memory(), Memory()]
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
    ranks = [Rank(hub, rank, device) for rank in range(RANKS)]
    threads = [threading.Thread(target=rank.run) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [rank.error for rank in ranks] == [None] * RANKS
    device.run(seed)
    for rank in ranks:
        assert rank.seen == [100 * i + rank.rank for i in range(MESSAGES)]
