"""The environment of launched processes: torchrun's variables, GPUs, and the backend."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist

from pipeloom.ir.errors import InputError

from ..device import device_count, gpu_uuid

Gpu: TypeAlias = tuple[bool, str, str]
"""Whether torch has NCCL, the host name, and the device's UUID."""


def world() -> tuple[int, int] | None:
    """Returns this process's rank and the number of ranks; None if torchrun did not start it.

    Raises InputError with the name of an invalid or missing variable.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    size = number("WORLD_SIZE", 1)
    rank = number("RANK", 0, size - 1)
    if not dist.is_initialized():
        if not os.environ.get("MASTER_ADDR"):
            raise InputError("MASTER_ADDR: missing; expected it beside RANK, as torchrun sets it")
        number("MASTER_PORT", 0, 65535)
    return rank, size


def number(name: str, least: int, most: int | None = None) -> int:
    """Returns the variable as an integer within bounds. Raises InputError."""
    text = os.environ.get(name, "")
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if value < least or (most is not None and value > most):
        bounds = f">= {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name}: expected a whole number {bounds}, got {text!r}")
    return value


def own_gpu() -> int:
    """Returns the index of this process's GPU; ranks share GPUs if a machine has too few."""
    local = number("LOCAL_RANK", 0) if "LOCAL_RANK" in os.environ else 0
    return local % device_count()


def gpu_here(device: torch.device) -> Gpu | None:
    """Returns this process's current GPU; None on a CPU."""
    if device.type != "cuda":
        return None
    return dist.is_nccl_available(), socket.gethostname(), gpu_uuid()


def backend_of(gpus: Sequence[Gpu | None]) -> str:
    """Returns the backend of ``torch.distributed`` for the GPUs of all ranks; the same on each.

    NCCL if all GPUs differ, or if ``NCCL_MULTI_RANK_GPU_ENABLE`` is 1 (since NCCL 2.30, ranks may
    share a GPU); otherwise Gloo. Rank 0 prints why GPUs use Gloo.
    """
    if None in gpus:
        return "gloo"
    lacking = [rank for rank, gpu in enumerate(gpus) if gpu and not gpu[0]]
    may_share = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
    shared = [rank for rank, gpu in enumerate(gpus) if gpus.count(gpu) > 1 and not may_share]
    if not lacking and not shared:
        return "nccl"
    if os.environ.get("RANK", "0") == "0":
        why = f"no NCCL on ranks {lacking}" if lacking else f"ranks {shared} share GPUs"
        sys.stderr.write(f"note: Gloo instead of NCCL, through the host's memory: {why}\n")
    return "gloo"
