"""NCCL: CUDA tensors, never stopping the host.

Each ordered pair of ranks has a communicator and a stream of its own, so that a message waits for
nothing but earlier messages of its own channel, and both directions flow at once.

CUDA loads a kernel when it first runs, and waits until the device has nothing left to do. A message
on its way is something to do, and may wait for what the other rank sends after this one computed.
So each message goes through the host's memory the first time, and again once shapes have changed:
from then on all kernels are there (docs/decisions/0038).

::

    compute stream   ── F ── record ─────────── B ── wait ── ...
                             │ 1                     ▲ 3
    channel's stream         └─ wait ── send/recv ───┘
                                   ▲ 2
    a buffer's last read ── record ┘
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from ..device import Device
from .base import Handle, Routes
from .process_group import GroupTransport
from .staged_gloo import StagedGlooTransport

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
"""Streams beyond so many, 8 by default, share queues, in which each waits for those before it."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One direction between two ranks; ``peer`` is the other's rank within ``group``."""

    group: dist.ProcessGroup
    stream: torch.Stream
    peer: int


class NcclHandle:
    """A posted message; keeps its tensor from the allocator until the compute stream waited."""

    __slots__ = ("_tensor", "_work")

    def __init__(self, work: dist.Work, tensor: Tensor) -> None:
        self._work, self._tensor = work, tensor

    def wait(self) -> None:
        self._work.wait()  # 3: an event that the current stream waits for; the host goes on


class NcclTransport(GroupTransport):
    """One communicator and stream for each ordered pair of ranks that the program uses."""

    backend = "nccl"

    def __init__(self, routes: Routes, device: torch.device, group: dist.ProcessGroup) -> None:
        super().__init__(routes, device, group)
        self._device = Device(device)
        self._channels: dict[tuple[int, int], Channel] = {}
        self._free: dict[int, torch.Event] = {}
        self._summed = set[tuple[tuple[int, ...], int]]()
        self.first = self.attached(StagedGlooTransport(routes, device, group))
        # the same order on all ranks: the first message of a communicator sets it up and blocks
        for source, target in sorted(routes.channels):
            if self.rank in (source, target):
                self._channels[source, target] = self._open(source, target)
        self._check_connections()
        self.barrier()

    def _check_connections(self) -> None:
        """Warns where streams share queues: by simulation, some schedules can then hang."""
        streams, given = 1 + 2 * len(self._channels), os.environ.get(CONNECTIONS, "")
        most = int(given) if given.isdecimal() else 8
        if self.rank == 0 and streams > most:
            warnings.warn(
                f"{CONNECTIONS}: expected at least {streams} before CUDA starts, got {most}: "
                "messages may wait for each other",
                stacklevel=2,
            )

    def labels(self, routes: Routes) -> Iterable[tuple[str, tuple[int, ...]]]:
        return [(f"{source}>{target}", (source, target)) for source, target in routes.channels]

    def _open(self, source: int, target: int) -> Channel:
        group = self.communicator(f"{source}>{target}", (source, target))
        channel = Channel(group, self._device.stream(), 1 - dist.get_rank(group))
        peer = channel.peer
        token = torch.zeros(1, device=self.device)
        if self.rank == source:
            dist.send(token, group=channel.group, group_dst=peer)
        else:
            dist.recv(token, group=channel.group, group_src=peer)
        self._device.current().synchronize()
        return channel

    def send(self, tensor: Tensor, peer: int) -> Handle:
        channel = self._channels[self.rank, peer]
        channel.stream.wait_stream(self._device.current())  # 1
        with self._device.use(channel.stream):
            return NcclHandle(channel.group.send([tensor], channel.peer, 0), tensor)

    def recv(self, buffer: Tensor, peer: int) -> Handle:
        channel = self._channels[peer, self.rank]
        free = self._free.pop(buffer.data_ptr(), None)
        if free is None:  # its first use: after whatever the memory held before
            channel.stream.wait_stream(self._device.current())
        else:
            channel.stream.wait_event(free)  # 2
        with self._device.use(channel.stream):
            return NcclHandle(channel.group.recv([buffer], channel.peer, 0), buffer)

    def releasing(self, buffer: Tensor) -> Callable[[], None]:
        self._free.pop(buffer.data_ptr(), None)  # of another buffer, which was there before
        return partial(self._release, buffer.data_ptr(), self._device.event())

    def _release(self, pointer: int, event: torch.Event) -> None:
        event.record(self._device.current())
        self._free[pointer] = event

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        known = (ranks, tensor.numel())
        if known in self._summed:
            super().all_reduce(tensor, ranks)
        else:
            self._summed.add(known)
            self.first.all_reduce(tensor, ranks)

    def close(self) -> None:
        self.first.close()
        super().close()
