"""What every transport over ``torch.distributed`` shares: collectives, and the clocks' offset."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import Routes

PINGS = 8


class GroupTransport:
    """Collectives over a communicator of its own, so that nobody else's messages mix with ours.

    Groups are made with local synchronisation, in one order everywhere: only their members take
    part, and no two ranks wait for each other in turn.
    """

    backend: str

    def __init__(self, routes: Routes, device: torch.device, group: dist.ProcessGroup) -> None:
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.device = device
        self.timeout = routes.timeout
        self._global_ranks = dist.get_process_group_ranks(group)
        self.group = self.new_group(tuple(range(self.size)))
        self._groups = {
            ranks: self.new_group(ranks) for ranks in sorted(routes.groups) if self.rank in ranks
        }

    def new_group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """A communicator of ``ranks`` of this transport."""
        group = dist.new_group(
            [self._global_ranks[rank] for rank in ranks],
            timeout=self.timeout,
            backend=self.backend,
            use_local_synchronization=True,
        )
        assert isinstance(group, dist.ProcessGroup)
        return group

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        dist.all_reduce(tensor, group=self._groups[ranks])

    def share(self, value: Any, source: int) -> Any:
        values = [value]
        dist.broadcast_object_list(values, group_src=source, group=self.group)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def barrier(self) -> None:
        # a reduction whose result is read: unlike dist.barrier, the same on every backend
        token = torch.zeros(1, device=self.device)
        dist.all_reduce(token, group=self.group)
        token.item()

    def clock_offset(self) -> float:
        """By the round trip of least delay to rank 0, whose clock is read half-way through it."""
        offset = 0.0
        for rank in range(1, self.size):
            if self.rank == 0:
                self._answer(rank)
            elif self.rank == rank:
                offset = self._ask()
        return offset

    def _answer(self, rank: int) -> None:
        for _ in range(PINGS):
            self._receive(rank)
            now = torch.tensor([time.perf_counter()], dtype=torch.float64, device=self.device)
            dist.send(now, group=self.group, group_dst=rank)

    def _ask(self) -> float:
        best, offset = float("inf"), 0.0
        token = torch.zeros(1, dtype=torch.float64, device=self.device)
        for _ in range(PINGS):
            before = time.perf_counter()
            dist.send(token, group=self.group, group_dst=0)
            answer = self._receive(0)
            after = time.perf_counter()
            if after - before < best:
                best, offset = after - before, answer - (before + after) / 2
        return offset

    def _receive(self, rank: int) -> float:
        token = torch.zeros(1, dtype=torch.float64, device=self.device)
        dist.recv(token, group=self.group, group_src=rank)
        return token.item()
