"""Streams of a simulated device in any order: messages and offloaded memory have the computed
values, buffers are not overwritten before they are read, and nothing is read before it arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.fake_device import HERE, Device, Event, Memory, Stream, on
from tests.support.inside import (
    CopyChannels,
    GlooTransport,
    NcclChannel,
    NcclTransport,
    StagedGlooTransport,
)

MESSAGES = 6


class Wire:
    """A process group of two ranks; messages arrive in the order in which they were sent."""

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
    """Its wait makes the compute stream wait for what was posted."""

    def __init__(self, stream: Stream, device: Device) -> None:
        self._device, self._event = device, Event()
        self._event.record(stream)

    def wait(self) -> None:
        self._device.current().wait_event(self._event)


class MadeUpNccl(NcclTransport):
    """Rank 0 or 1, with one channel from 0 to 1."""

    def __init__(self, rank: int, device: Any, wire: Any) -> None:
        self.rank, self._device, self._free = rank, device, {}
        self._channels = {(0, 1): NcclChannel(wire, device.stream(), 1 - rank)}


class Arriving(GlooTransport):
    """The requested message number ``i``, counted from 1, contains ``i``."""

    asked = 0

    def recv(self, buffer: Any, peer: int) -> Any:
        self.asked += 1
        return Arrival(buffer, self.asked)


@dataclass
class Arrival:
    """A message that is written into host memory until the wait for it ends."""

    place: Memory
    value: int

    def wait(self) -> None:
        self.place.value = self.value


class MadeUpStagedGloo(StagedGlooTransport, Arriving):
    """Without a process group: records what would be posted, and what is waited for before."""

    def __init__(self, device: Device) -> None:
        self._accelerator: Any = device
        self._copies: Any = device.stream()
        self.posted: list[tuple[Any, Any]] = []

    def _host_memory(self, tensor: Any) -> Any:
        return Memory()

    def _sent_by_thread(self, tensor: Any, peer: int, ready: Any = None, *kept: Any) -> Any:
        self.posted.append((tensor, ready))


def computing(memory: Memory, number: int) -> Callable[[], None]:
    def compute() -> None:
        memory.value = number

    return compute


@pytest.mark.parametrize("seed", range(10))
def test_messages_of_nccl_through_one_buffer_on_each_side(seed: int) -> None:
    first, second = devices = [Device(), Device()]
    second.streams = first.streams  # they run in any order relative to each other
    second.streams.append(second.compute)
    wire = Wire(devices)
    sender, receiver = (MadeUpNccl(rank, devices[rank], wire) for rank in range(2))
    buffer: Any = Memory()
    seen: list[int] = []
    for number in range(MESSAGES):
        message: Any = Memory()
        first.compute.does(computing(message, number))
        sender.send(message, 1)
    release = receiver.releasing(buffer)
    with on(second.compute):
        for _ in range(MESSAGES):
            receiver.recv(buffer, 0).wait()
            second.compute.does(lambda: seen.append(buffer.value))
            release()
    first.run(seed)
    assert seen == [*range(MESSAGES)]


@pytest.mark.parametrize("seed", range(10))
def test_messages_through_the_host_are_copied_once_computed_and_posted_once_copied(
    seed: int,
) -> None:
    device = Device()
    sends = MadeUpStagedGloo(device)
    with on(device.compute):
        for number in range(MESSAGES):
            message: Any = Memory()
            device.compute.does(computing(message, number))
            sends.send(message, 1)
    for _, ready in sends.posted:
        with pytest.raises(AssertionError, match="not reached"):
            ready()
    device.run(seed)
    for _, ready in sends.posted:
        ready()
    assert [place.value for place, _ in sends.posted] == [*range(MESSAGES)]


@pytest.mark.parametrize("seed", range(10))
def test_what_follows_a_wait_sees_that_message_in_a_buffer_used_again(seed: int) -> None:
    """All receives are posted early, into the same buffer."""
    device = Device()
    buffer: Any = Memory()
    seen: list[int] = []
    receives = MadeUpStagedGloo(device)
    with on(device.compute):
        for handle in [receives.recv(buffer, 0) for _ in range(MESSAGES)]:
            handle.wait()
            device.compute.does(lambda: seen.append(buffer.value))
    assert (buffer.value, seen) == (-1, [])  # the host does not wait for the device
    device.run(seed)
    assert seen == [*range(1, MESSAGES + 1)]


@pytest.mark.parametrize("seed", range(10))
def test_what_comes_back_from_the_host_is_what_went_out(seed: int) -> None:
    """F overwrites its predecessor's memory once that is offloaded; two are offloaded before the
    first is loaded, to host memory that both reuse."""
    device = Device()
    made_up: Any = device
    channels, compute = CopyChannels(made_up), device.compute
    active, places, seen = Memory(), [Memory(), Memory()], list[int]()

    def backward(memory: Memory) -> Callable[[], None]:
        return lambda: seen.append(memory.value)

    with on(compute):
        for first in range(0, MESSAGES, 2):
            for i in (first, first + 1):
                compute.does(computing(active, i))
                channels.out([(places[i % 2], active)])()
            for i in (first, first + 1):
                again = Memory()
                channels.back([(again, places[i % 2])])()
                compute.does(backward(again))
    device.run(seed)
    assert seen == [*range(MESSAGES)]
