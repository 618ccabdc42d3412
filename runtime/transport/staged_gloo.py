"""Gloo for device tensors: each message is copied to host memory, sent, and copied to the device.

Order of operations (comments in the code refer to the numbers)::

    rank 0   compute stream  ── F ──┐
             copy stream            └─ copy to host ─┐ 1
             posting thread                          └─ send
    rank 1   host            ── receive posted ── wait for it ─┐ 2
             compute stream                                    └─ copy to device ── F ──

Ranks may share a device, and NCCL is not required. The host waits for each message, so this
transport is slower than NCCL if each rank has its own device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from ..device import Device
from .base import Handle, Routes
from .gloo import GlooTransport

CPU = torch.device("cpu")


class StagedReceive:
    """A receive into host memory, from which ``wait`` copies the message into the buffer."""

    __slots__ = ("_buffer", "_handle", "_place")

    def __init__(self, handle: Handle, place: Tensor, buffer: Tensor) -> None:
        self._handle, self._place, self._buffer = handle, place, buffer

    def wait(self) -> None:
        """Waits for the message; kernels launched afterwards read it in the device's buffer.

        Raises the errors of :meth:`GlooHandle.wait`.
        """
        self._handle.wait()  # 2
        with torch.no_grad():
            self._buffer.copy_(self._place, non_blocking=True)


class StagedGlooTransport(GlooTransport):
    """Sends messages by Gloo through host memory, which is pinned if the device is a GPU."""

    def __init__(self, routes: Routes, device: torch.device, group: dist.ProcessGroup) -> None:
        super().__init__(routes, CPU, group)
        self.place = device
        self._accelerator = Device(device)
        self._copies = self._accelerator.stream()

    def send(self, tensor: Tensor, peer: int) -> Handle:
        place = self._host_memory(tensor)
        return self._sent_by_thread(place, peer, self._copied(tensor, place))

    def recv(self, buffer: Tensor, peer: int) -> Handle:
        place = self._host_memory(buffer)
        return StagedReceive(super().recv(place, peer), place, buffer)

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        place = tensor.detach().cpu()
        super().all_reduce(place, ranks)
        with torch.no_grad():
            tensor.copy_(place)

    def _host_memory(self, tensor: Tensor) -> Tensor:
        """Returns new host memory for ``tensor``, pinned for an accelerator.

        torch reuses pinned memory once the copies from and to it are done.
        """
        return torch.empty_like(tensor, device=CPU, pin_memory=not self._accelerator.is_host)

    def _copied(self, tensor: Tensor, place: Tensor) -> Callable[[], object]:
        """Starts to copy ``tensor`` to ``place`` on the host.

        Returns the function that waits for the copy. It keeps ``tensor`` alive until then.
        """
        self._copies.wait_stream(self._accelerator.current())
        with self._accelerator.use(self._copies):
            place.copy_(tensor, non_blocking=True)
            done = self._accelerator.event()
            done.record(self._copies)

        def copied() -> Tensor:
            done.synchronize()  # 1
            return tensor

        return copied
