"""Transports and offloading on the made-up device of :mod:`tests.support.fake_device`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeloom.runtime.executor.offload import DeviceChannels
from pipeloom.runtime.transport.gloo import GlooTransport
from pipeloom.runtime.transport.nccl import Channel, NcclTransport
from pipeloom.runtime.transport.staged_gloo import StagedGlooTransport
from tests.support.fake_device import HERE, Device, Event, Memory, Stream


def host_channels(device: Device) -> Any:
    """The streams between a device and its host."""
    made_up: Any = device
    return DeviceChannels(made_up)


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


class MadeUpNccl(NcclTransport):
    """Rank 0 or 1, between which one channel goes from 0 to 1."""

    def __init__(self, rank: int, device: Any, wire: Any) -> None:
        self.rank, self._device, self._free = rank, device, {}
        self._channels = {(0, 1): Channel(wire, device.stream(), 1 - rank)}


class Arriving(GlooTransport):
    """Message number ``i``, from 1 on, that is asked for holds ``i``."""

    asked = 0

    def recv(self, buffer: Any, peer: int) -> Any:
        self.asked += 1
        return Arrival(buffer, self.asked)


@dataclass
class Arrival:
    """A message that is written into the host's memory until the wait for it ends."""

    place: Memory
    value: int

    def wait(self) -> None:
        self.place.value = self.value


class MadeUpStagedGloo(StagedGlooTransport, Arriving):
    """Without a process group: what would be posted is kept, with what is waited for before."""

    def __init__(self, device: Device) -> None:
        self._accelerator: Any = device
        self._copies: Any = device.stream()
        self.posted: list[tuple[Any, Any]] = []

    def _host_memory(self, tensor: Any) -> Any:
        return Memory()

    def _sent_by_thread(self, tensor: Any, peer: int, ready: Any = None, **kept: Any) -> Any:
        self.posted.append((tensor, ready))
