"""Streams, events, memory and random state of a device: all calls that depend on its type."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from pipeloom.ir.errors import InputError

CYCLES = 1.5e6  # approximate number of GPU clock cycles per millisecond


class Device:
    """Operations on ``device`` by torch's module for its type, such as ``torch.cuda``.

    ``torch.cpu`` has streams and events, too. They do nothing, as work on a CPU is complete when a
    call returns.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._torch: Any = torch.get_device_module(device)

    @property
    def is_host(self) -> bool:
        """Whether the device is a CPU, so that its memory is the host's."""
        return self.device.type == "cpu"

    def stream(self) -> torch.Stream:
        """Returns a new stream."""
        stream: torch.Stream = self._torch.Stream(self.device)
        return stream

    def event(self, *, timed: bool = False) -> torch.Event:
        """Returns a new event.

        If ``timed``, it records the time at which a stream reaches it; otherwise, it has no time.
        """
        event: torch.Event = self._torch.Event(*((True,) if timed else ()))
        return event

    def use(self, stream: torch.Stream) -> AbstractContextManager[object]:
        """Returns a context in which work is queued on ``stream``."""
        context: AbstractContextManager[object] = self._torch.stream(stream)
        return context

    def current(self) -> torch.Stream:
        """Returns the device's current stream, on which work is queued."""
        stream: torch.Stream = self._torch.current_stream(self.device)
        return stream

    def synchronize(self) -> None:
        """Waits until all work queued on the device is done; returns immediately on a CPU."""
        self._torch.synchronize(self.device)

    def peak_memory(self) -> int | None:
        """Returns the peak bytes that torch's allocator had in use since the last reset.

        Returns None on a CPU.
        """
        return None if self.is_host else self._torch.max_memory_allocated(self.device)

    def generator(self) -> torch.Generator:
        """Returns torch's default random number generator of the device."""
        if self.is_host:
            return torch.default_generator
        current, index = self._torch.current_device(), self.device.index
        generator: torch.Generator
        generator = self._torch.default_generators[current if index is None else index]
        return generator

    def keep_busy(self, milliseconds: float) -> None:
        """Keeps the current stream of a GPU busy for about this time, so that the host runs ahead.

        Does nothing on other devices.
        """
        if self.device.type == "cuda":
            self._torch._sleep(int(milliseconds * CYCLES))


def accelerator() -> Any:
    """Returns torch's module for this machine's accelerator, or ``torch.cpu`` if it has none."""
    return torch.get_device_module()


def device_count() -> int:
    """Returns the number of GPUs that this process sees."""
    return torch.cuda.device_count()


def check_devices() -> None:
    """Raises InputError if torch finds no GPU."""
    if device_count() == 0:
        raise InputError("device: expected cpu, got cuda: torch finds no CUDA device here")


def with_index(device: torch.device) -> torch.device:
    """Returns ``device`` with an index, by default that of the current device of its type.

    An index that ``device`` already has is kept. A CPU is returned unchanged.
    """
    if device.type == "cpu" or device.index is not None:
        return device
    return torch.device(device.type, torch.get_device_module(device).current_device())


def set_gpu(index: int) -> None:
    """Makes the GPU with this index the current device of this process."""
    torch.cuda.set_device(index)


def gpu_uuid() -> str:
    """Returns the UUID of the current GPU."""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
