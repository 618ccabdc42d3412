"""Time of copies between a device and its host, by the copy channels that offload uses."""

from __future__ import annotations

import time

import torch

from ..device import Device
from ..executor.offload import Host
from .link_probe import LinkSamples

SMALL = 8  # bytes
LARGE = {"cpu": 1 << 23, "cuda": 1 << 27}
"""Bytes: what is offloaded is large, and short copies show latency alone."""
WARMUP = 2


def probe_host(device: torch.device, repeats: int, rank: int) -> LinkSamples:
    """Milliseconds of a copy: half of one out to the host and one back, which the channels make one
    after the other.

    On a CPU, where the host is the same memory, of a copy from buffer to buffer.
    """
    host, size = Host(device), LARGE[device.type]
    small, large = (_copies(host, device, length, repeats) for length in (SMALL, size))
    return LinkSamples((rank, rank), size, small, large)


def _copies(host: Host, device: torch.device, size: int, repeats: int) -> list[float]:
    there, back = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    out, into = host.take(size), host.take(size)
    into.zero_()
    finish, times = Device(device).synchronize, []
    for _ in range(WARMUP + repeats):
        finish()
        begin = time.perf_counter()
        leaving = host.channels.out([(out, there)])
        loading = host.channels.back([(back, into)])
        leaving()
        loading()
        finish()
        times.append((time.perf_counter() - begin) * 1e3 / 2)
    return times[WARMUP:]
