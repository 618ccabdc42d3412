"""NCCL: CUDA tensors, without blocking the host.

Each ordered pair of ranks has its own communicator and stream, so a message only waits for earlier
messages of its channel, and both directions run at the same time.

CUDA loads a kernel when it first runs, and for that waits until the device is idle. A pending
message keeps the device busy, possibly until the other rank sends something that depends on this
rank's computation: a deadlock. So the first time, and again after shapes have changed, each message
goes through host memory; afterwards, all kernels are loaded (docs/decisions/0038).

Order of operations (comments in the code refer to the numbers)::

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
"""The environment variable with the number of the GPU's hardware queues, by default 8.

If there are more streams, they share queues, each of which runs in FIFO order.
"""


@dataclass(frozen=True, slots=True)
class Channel:
    """A connection for messages from one rank to another.

    ``group``: its communicator, with these two ranks. ``peer``: the other rank's index in it.
    ``stream``: the stream on which its messages are sent or received.
    """

    group: dist.ProcessGroup
    stream: torch.Stream
    peer: int


class NcclHandle:
    """A posted message; keeps its tensor's memory until the compute stream has waited."""

    __slots__ = ("_tensor", "_work")

    def __init__(self, work: dist.Work, tensor: Tensor) -> None:
        self._work, self._tensor = work, tensor

    def wait(self) -> None:
        self._work.wait()  # 3: the current stream waits for an event; the host does not


class NcclTransport(GroupTransport):
    """Sends messages by NCCL, with a communicator and stream for each ordered pair of ranks.

    Only pairs that exchange messages in the program have them.
    """

    backend = "nccl"

    def __init__(self, routes: Routes, device: torch.device, group: dist.ProcessGroup) -> None:
        super().__init__(routes, device, group)
        self._device = Device(device)
        self._channels: dict[tuple[int, int], Channel] = {}
        self._free: dict[int, torch.Event] = {}
        self._summed = set[tuple[tuple[int, ...], int]]()
        self.first = self.attached(StagedGlooTransport(routes, device, group))
        # the same order on all ranks: a communicator's first message sets it up and blocks
        for source, target in sorted(routes.channels):
            if self.rank in (source, target):
                self._channels[source, target] = self._open(source, target)
        self._check_connections()
        self.barrier()

    def _check_connections(self) -> None:
        """Warns if there are more streams than hardware queues of the GPU.

        Streams then share queues; in simulations of shared queues, some schedules hang.
        """
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
        if free is None:  # first use: wait for earlier uses of the memory
            channel.stream.wait_stream(self._device.current())
        else:
            channel.stream.wait_event(free)  # 2
        with self._device.use(channel.stream):
            return NcclHandle(channel.group.recv([buffer], channel.peer, 0), buffer)

    def releasing(self, buffer: Tensor) -> Callable[[], None]:
        self._free.pop(buffer.data_ptr(), None)  # event of an earlier buffer at this address
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
