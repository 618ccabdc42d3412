"""Messages between thread ranks of a GPU: what the host tells the device is right in whatever
order it is run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipeloom.runtime.transport import Routes
from pipeloom.runtime.transport import in_process as local
from pipeloom.runtime.transport.in_process import Hub, InProcessTransport
from tests.support.fake_device import HERE, Device, Event, Memory, Stream, on


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

    def __init__(self, hub: Hub, rank: int, device: Device) -> None:
        pairs = [(r, r + 1) for r in range(RANKS - 1)]
        self.between: Any = InProcessTransport(hub, rank, Routes.of(pairs, (), 10.0))
        self.buffers = [Memory(), Memory()]
        self.rank, self.stream = rank, Stream(device)
        self.seen: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with on(self.stream):
                self._steps()
        except BaseException as error:
            self.error = error

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
