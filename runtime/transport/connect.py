"""A rank's place among all, and the transport for its device."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .base import Routes, Transport
from .gloo import GlooTransport
from .in_process import Hub, InProcessTransport
from .nccl import NcclTransport
from .thread_rank import here


def whereabouts(group: dist.ProcessGroup | None = None) -> tuple[int, int]:
    """This rank in ``group`` (by default: of all), and the number of ranks; 0 of 1 alone."""
    place = here()
    if place is not None:
        return place.rank, place.hub.size
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def gather_early(value: Any, group: dist.ProcessGroup | None, seconds: float) -> list[Any]:
    """The values of all ranks of ``group``, before there is a transport; every rank calls it."""
    place = here()
    if place is not None:
        members = tuple(range(place.hub.size))
        return place.hub.exchange("early", place.rank, members, value, seconds)
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def connect(
    routes: Routes, device: torch.device, group: dist.ProcessGroup | None = None
) -> Transport:
    """The transport for ``device``: NCCL for CUDA, Gloo otherwise; thread ranks have their own.

    All processes call it at the same time, each for its ``group`` (by default: all of them).
    """
    place = here()
    if place is not None:
        return InProcessTransport(place.hub, place.rank, routes)
    if not dist.is_initialized():
        return InProcessTransport(Hub(1), 0, routes)
    group = group or dist.group.WORLD
    assert group is not None
    if device.type == "cuda":
        return NcclTransport(routes, device, group)
    return GlooTransport(routes, device, group)
