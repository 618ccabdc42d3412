"""NCCL's messages: what is sent is what was computed, a buffer is not overwritten before it is
read, and nothing reads it before the message came, whatever stream goes on first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from pipeloom.runtime.transport.nccl import Channel, NcclTransport
from tests.support.fake_device import HERE, Device, Event, Memory, Stream, on

MESSAGES = 6


class Wire:
    """A process group of two ranks: messages come in the order in which they were sent."""

    def __init__(self, devices: list[Device]) -> None:
        self._devices, self._sent = devices, deque[int]()

    def send(self, tensors: list[Memory], peer: int, _: int) -> Work:
        (tensor,) = tensors

        def send() -> bool:
            self._sent.append(tensor.value)
            return True

        return self._posted(send, 1 - peer)

    def recv(self, tensors: list[Memory], peer: int, _: int) -> Work:
        (buffer,) = tensors

        def receive() -> bool:
            if self._sent:
                buffer.value = self._sent.popleft()
                return True
            return False

        return self._posted(receive, 1 - peer)

    def _posted(self, work: Callable[[], bool], rank: int) -> Work:
        stream: Stream = HERE.stream
        stream.queue.append(work)
        return Work(stream, self._devices[rank])


class Work:
    """Its wait makes the stream that computes wait for what was posted."""

    def __init__(self, stream: Stream, device: Device) -> None:
        self._device, self._event = device, Event()
        self._event.record(stream)

    def wait(self) -> None:
        self._device.current().wait_event(self._event)


class OnMadeUpDevice(NcclTransport):
    """Rank 0 or 1, between which one channel goes from 0 to 1."""

    def __init__(self, rank: int, device: Any, wire: Any) -> None:
        self.rank, self._device, self._free = rank, device, {}
        self._channels = {(0, 1): Channel(wire, device.stream(), 1 - rank)}


@pytest.mark.parametrize("seed", range(10))
def test_messages_through_one_buffer_on_each_side(seed: int) -> None:
    first, second = devices = [Device(), Device()]
    second.streams = first.streams  # they run in any order with each other
    second.streams.append(second.compute)
    wire = Wire(devices)
    sender, receiver = (OnMadeUpDevice(rank, devices[rank], wire) for rank in range(2))
    source, buffer, seen = [Memory() for _ in range(MESSAGES)], Memory(), list[int]()
    for number, memory in enumerate(source):
        first.compute.does(computing(memory, number))
        sender.send(memory, 1)  # type: ignore[arg-type]
    with on(second.compute):
        for _ in range(MESSAGES):
            release = receiver.releasing(buffer)  # type: ignore[arg-type]
            receiver.recv(buffer, 0).wait()  # type: ignore[arg-type]
            second.compute.does(lambda: seen.append(buffer.value))
            release()
    first.run(seed)
    assert seen == [*range(MESSAGES)]


def computing(memory: Memory, number: int) -> Callable[[], None]:
    def compute() -> None:
        memory.value = number

    return compute
