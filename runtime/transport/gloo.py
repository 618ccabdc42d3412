"""Gloo: CPU tensors over TCP.

A send completes only once its receive is posted, whatever its size, and a message goes to the
receive with its tag, in any order; ``is_completed`` stays False until ``wait``. So each channel
numbers its messages and uses the number as the tag. Short messages between ranks of one machine
take another way (:mod:`.short`); both ends tell by the size, so that each way keeps its own order.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from . import Handle, Routes
from .group import GroupTransport
from .short import Packets, fits, links

TAGS = 1 << 30


class GlooHandle:
    """A posted message; keeps its tensor alive."""

    __slots__ = ("_tensor", "wait")

    def __init__(self, work: dist.Work, tensor: Tensor, timeout: timedelta) -> None:
        self._tensor = tensor
        self.wait = partial(work.wait, timeout)


class GlooTransport(GroupTransport):
    """One process group whose tags are the messages' numbers, one sequence a channel."""

    backend = "gloo"

    def __init__(self, routes: Routes, device: torch.device, group: dist.ProcessGroup) -> None:
        super().__init__(routes, device, group)
        # tag 0 belongs to the pings of clock_offset
        self._sent: dict[int, int] = defaultdict(lambda: 1)
        self._received: dict[int, int] = defaultdict(lambda: 1)
        self._links = links(self.rank, routes.channels, self.timeout, self.gather)

    def messages(self) -> Packets:
        return Packets(self._links, self)

    def send(self, tensor: Tensor, peer: int) -> Handle:
        if peer in self._links and fits(tensor):
            return self._links[peer].send(tensor)
        tag = self._sent[peer]
        self._sent[peer] = tag % TAGS + 1
        return GlooHandle(self.group.send([tensor], peer, tag), tensor, self.timeout)

    def recv(self, buffer: Tensor, peer: int) -> Handle:
        if peer in self._links and fits(buffer):
            return self._links[peer].recv(buffer)
        tag = self._received[peer]
        self._received[peer] = tag % TAGS + 1
        return GlooHandle(self.group.recv([buffer], peer, tag), buffer, self.timeout)

    def releasing(self, buffer: Tensor) -> None:
        return None

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        super().close()
