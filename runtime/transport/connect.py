"""This process's rank, and the transport for its device."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .base import Routes, Transport
from .gloo import GlooTransport
from .nccl import NcclTransport
from .staged_gloo import StagedGlooTransport


def whereabouts(group: dist.ProcessGroup | None = None) -> tuple[int, int]:
    """Returns this process's rank in ``group`` (by default, all processes), and the group's size.

    Returns (0, 1) if ``torch.distributed`` is not initialized.
    """
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def connect(
    routes: Routes, device: torch.device, group: dist.ProcessGroup | None = None
) -> Transport:
    """Returns a new transport for tensors on ``device`` between the ranks of ``group``.

    It is Gloo on a CPU; otherwise NCCL if that is a backend of ``group``, else Gloo through host
    memory. All processes call this at the same time, each for its own ``group`` (by default, all
    processes).
    """
    if not dist.is_initialized():
        return Transport()
    group = group or dist.group.WORLD
    assert group is not None
    if device.type == "cpu":
        return GlooTransport(routes, device, group)
    if "nccl" in dist.get_backend_config(group):
        return NcclTransport(routes, device, group)
    return StagedGlooTransport(routes, device, group)
