"""Messages between thread ranks of a GPU: what the host tells the device is right in whatever
order it is run, and can be recorded as a graph."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipeloom.runtime.executor import cuda_graph as graph
from pipeloom.runtime.executor.cuda_graph import SharedRecording
from pipeloom.runtime.transport import Routes
from pipeloom.runtime.transport import in_process as local
from pipeloom.runtime.transport.in_process import Hub, InProcessTransport
from tests.support.fake_device import DEVICE, HERE, Device, Event, Graph, Memory, Stream, on


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(local, "make_stream", lambda _, first: Stream(device))
    monkeypatch.setattr(local, "make_event", lambda timed: Event())
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: HERE.stream)
    return device


RANKS, MESSAGES = 3, 8


class Rank:
    """Receives ``MESSAGES`` numbers into two buffers in turn, adds one and sends them on from
    memory that is used again."""

    def __init__(self, hub: Hub, rank: int, device: Device, graph: Graph | None = None) -> None:
        pairs = [(r, r + 1) for r in range(RANKS - 1)]
        self.between: Any = InProcessTransport(hub, rank, Routes.of(pairs, (), 10.0))
        self.graph, self.buffers = graph, [Memory(), Memory()]
        self.rank, self.stream = rank, Stream(device)
        self.seen: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with on(self.stream):
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
