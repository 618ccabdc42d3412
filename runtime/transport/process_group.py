"""Common parts of transports over ``torch.distributed``: communicators, collectives, failure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .base import Routes, Transport
from .faults import Faults, RankFault
from .making import faults_under_way, gather_early, new_group
from .store import PATIENCE, Store, StoreLostError

MAIN = "main"
_Other = TypeVar("_Other", bound="GroupTransport")


class GroupTransport(Transport):
    """A transport over process groups (communicators) of its own, which nothing else uses.

    ``group``: the process group of this pipeline's ranks. All processes of ``torch.distributed``,
    including those of other groups (such as replicas of the pipeline), create their transports at
    the same time. torch numbers communicators in the order in which a process creates them, so all
    processes participate in creating each.
    """

    backend: str

    def __init__(self, routes: Routes, device: torch.device, group: dist.ProcessGroup) -> None:
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.device, self.place, self.outer = device, device, group
        self.timeout = routes.timeout
        self._attached: list[GroupTransport] = []
        self._global_ranks = dist.get_process_group_ranks(group)
        everyone = tuple(range(self.size))
        summed = [("sum", ranks) for ranks in routes.groups]
        self._made = self._make([(MAIN, everyone), *summed, *self.labels(routes)])
        self.group = self.communicator(MAIN, everyone)
        self.faults = faults_under_way() or self._faults()
        self._groups = {r: self.communicator("sum", r) for _, r in summed if self.rank in r}

    def labels(self, routes: Routes) -> Iterable[tuple[str, tuple[int, ...]]]:
        """Returns (name, ranks) for each communicator that the backend needs for messages.

        Communicators for collectives are not included.
        """
        return ()

    def communicator(self, label: str, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        return self._made[label, self._globally(ranks)]

    def close(self) -> None:
        for group in self._made.values():
            dist.destroy_process_group(group)
        self._made.clear()
        self._groups.clear()
        del self.group  # a backend's threads end with the last reference

    def beside(self, routes: Routes) -> Self:
        return self.attached(type(self)(routes, self.place, self.outer))

    def _make(
        self, wanted: Sequence[tuple[str, tuple[int, ...]]]
    ) -> dict[tuple[str, tuple[int, ...]], dist.ProcessGroup]:
        """Creates the ``wanted`` process groups, and returns those that include this rank.

        ``wanted``: pairs of a name and ranks in this pipeline's group. Keys of the result: pairs of
        a name and global ranks, ascending. All processes create the groups that any of them wants,
        in the same order.
        """
        own = [(label, self._globally(ranks)) for label, ranks in wanted]
        lists = gather_early(own, None, self.timeout.total_seconds())
        made, gpu = {}, None if self.device.type == "cpu" else self.device
        for label, ranks in sorted({entry for entries in lists for entry in entries}):
            made[label, ranks] = new_group(ranks, self.timeout, self.backend, gpu)
        return {key: group for key, group in made.items() if group is not None}

    def _globally(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(self._global_ranks[rank] for rank in ranks))

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

    def fail(self, fault: RankFault, *, asks: bool) -> RankFault:
        faults, lost = self.faults, ""
        assert faults is not None
        first = own = replace(fault, process=faults.process, guess=asks)
        try:
            found = faults.first(own, seconds=PATIENCE)
            first = found if asks else own
        except StoreLostError as error:
            lost = f"; {error}" if asks else ""
        for transport in (self, *self._attached):
            transport.disconnect()
        if first.guess:
            _, lost = faults.silent(faults.members)
        faults.leave(faults.members)
        if first == own and not lost:
            return fault
        return faults.named(replace(first, text=first.text + lost, guess=False))

    def _faults(self) -> Faults:
        """Returns where errors are published if the transport is created without a pipeline."""
        store = Store(self.group.get_group_store(), PATIENCE)
        return Faults(store, "fault", dist.get_rank(), self._global_ranks)

    def attached(self, other: _Other) -> _Other:
        """Makes the waits of ``other`` end with those of this transport; returns ``other``."""
        self._attached = [*(one for one in self._attached if one._made), other]  # drops closed ones
        return other

    def disconnect(self) -> None:
        """Ends all waits between this rank and others."""

    def barrier(self) -> None:
        # a reduction whose result is read: unlike dist.barrier, the same on every backend
        token = torch.zeros(1, device=self.device)
        dist.all_reduce(token, group=self.group)
        token.item()
