"""The environment of a launched process: torchrun's variables, its GPU, and the backend."""

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
"""A rank's GPU: whether torch has NCCL there, the host name, and the GPU's UUID."""


def world() -> tuple[int, int] | None:
    """Returns the global rank of this process and the number of processes that torchrun started.

    Returns None if torchrun did not start it. Raises InputError if an environment variable of
    torchrun is invalid or missing.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    size = number("WORLD_SIZE", 1)
    rank = number("RANK", 0, size - 1)
    if not dist.is_initialized():
        if not os.environ.get("MASTER_ADDR"):
            raise InputError("MASTER_ADDR: missing; expected it with RANK, as torchrun sets both")
        number("MASTER_PORT", 0, 65535)
    return rank, size


def number(name: str, least: int, most: int | None = None) -> int:
    """Returns the environment variable ``name`` as an integer.

    Raises InputError if it is missing, no integer, less than ``least`` or more than ``most``.
    """
    text = os.environ.get(name, "")
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if value < least or (most is not None and value > most):
        bounds = f">= {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name}: expected a whole number {bounds}, got {text!r}")
    return value


def own_gpu() -> int:
    """Returns the index of this process's GPU: its local rank modulo the number of GPUs."""
    local = number("LOCAL_RANK", 0) if "LOCAL_RANK" in os.environ else 0
    return local % device_count()


def gpu_here(device: torch.device) -> Gpu | None:
    """Returns a description of this process's current GPU, or None if ``device`` is a CPU."""
    if device.type != "cuda":
        return None
    return dist.is_nccl_available(), socket.gethostname(), gpu_uuid()


def backend_of(gpus: Sequence[Gpu | None]) -> str:
    """Returns the backend of ``torch.distributed`` to use: "nccl" or "gloo", the same on all ranks.

    ``gpus``: the result of :func:`gpu_here` on each rank. NCCL is used if all ranks have it and
    either their GPUs differ or ``NCCL_MULTI_RANK_GPU_ENABLE`` is 1 (since NCCL 2.30, ranks may
    share a GPU); otherwise Gloo. If Gloo is used on GPUs, rank 0 prints the reason.
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
