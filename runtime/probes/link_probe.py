"""Measures messages between neighboring ranks and copies between a device and its host.

Messages are timed by ping-pong over the executor's transport, copies over the channels that offload
uses.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import NamedTuple

import torch

from pipeloom.ir.model.profile import Link, Links

from ..device import Device
from ..executor.offload import Host
from ..measure.op_timer import make_clock
from ..transport import Routes, Transport

SMALL = 8  # bytes; the time of such a message is the latency
LARGE = 1 << 22  # bytes; shorter messages are too noisy to determine a bandwidth
COPIED = {"cpu": 1 << 23, "cuda": 1 << 27}  # bytes; offloaded tensors are large
MESSAGES = 20  # round trips of each size on each link
WARMUP = 3
# milliseconds by which hosts run ahead of a GPU, as in a pipeline
AHEAD = 5.0
# links whose delays differ by a smaller factor count as equal: medians of short messages are noisy
ALIKE = 3.0


@dataclass(frozen=True, slots=True)
class LinkSamples:
    """One-way times between two ranks in milliseconds: small messages, and ``size`` bytes."""

    ranks: tuple[int, int]
    size: int
    small: Sequence[float]
    large: Sequence[float]


class LinkParts(NamedTuple):
    """Samples of messages as large as an activation, of large ones, and of copies to the host."""

    messages: Sequence[LinkSamples] = ()
    links: Sequence[LinkSamples] = ()
    host: Sequence[LinkSamples] = ()

    @classmethod
    def joined(cls, parts: Iterable[LinkParts]) -> LinkParts:
        """Joins the samples of several processes."""
        return cls(*(list(chain(*each)) for each in zip(*parts, strict=True)))


def probed_links(
    transport: Transport, largest: int, device: torch.device, *, offload: bool
) -> LinkParts:
    """Measures this rank's links; all ranks call it.

    ``transport`` connects a ring. ``largest``: bytes of the largest activation.
    """
    sent = probe_links(transport, largest, MESSAGES, device)
    large = sent if largest >= LARGE else probe_links(transport, LARGE, MESSAGES, device)
    host = [probe_host(device, MESSAGES, transport.rank)] if offload else []
    return LinkParts(sent, large, host)


def ring(ranks: int) -> list[tuple[int, int]]:
    """Returns the pairs of neighbors in a ring."""
    pairs = {(min(r, (r + 1) % ranks), max(r, (r + 1) % ranks)) for r in range(ranks)}
    return sorted(pairs) if ranks > 1 else []


def ring_routes(ranks: int, timeout: float) -> Routes:
    """Returns routes in both directions between all neighbors."""
    pairs = ring(ranks)
    return Routes.of([*pairs, *((b, a) for a, b in pairs)], (), timeout)


def probe_links(
    transport: Transport, size: int, repeats: int, device: torch.device
) -> list[LinkSamples]:
    """Returns the samples of each pair of neighbors, measured one pair after the other.

    All ranks call it; the lower rank of a pair gets its samples.
    """
    found = []
    for a, b in ring(transport.size):
        transport.barrier()
        if transport.rank not in (a, b):
            continue
        small, large = (
            _ping_pong(transport, (a, b), length, repeats, device) for length in (SMALL, size)
        )
        if transport.rank == a:
            found.append(LinkSamples((a, b), size, small, large))
    transport.barrier()
    return found


def _ping_pong(
    transport: Transport, pair: tuple[int, int], size: int, repeats: int, device: torch.device
) -> list[float]:
    """Returns half of each round-trip time, in milliseconds."""
    first, second = pair
    peer = second if transport.rank == first else first
    ping = torch.zeros(max(1, size), dtype=torch.uint8, device=device)
    pong = torch.zeros_like(ping)
    release = transport.releasing(pong)
    clock = make_clock(2, device)

    def there_and_back() -> None:
        # posted early, as the executor's receives are
        answer = transport.recv(pong, peer)
        if transport.rank == first:
            transport.send(ping, peer).wait()
            answer.wait()
        else:
            answer.wait()
            transport.send(ping, peer).wait()
        if release is not None:
            release()

    timed, times = clock.timed(there_and_back, 0), []
    for _ in range(WARMUP + repeats):
        clock.start()
        if transport.rank == first:  # the other rank's stream is idle and waits for the ping
            Device(device).keep_busy(AHEAD)
        timed()
        begin, end = clock.seconds()
        times.append((end - begin) * 1e3 / 2)
    return times[WARMUP:]


def probe_host(device: torch.device, repeats: int, rank: int) -> LinkSamples:
    """Measures copies: half the time of a copy to the host and one back, in milliseconds.

    On a CPU, the host's memory is the same, so these are copies between buffers.
    """
    host, size = Host(device), COPIED[device.type]
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


def links_of(samples: Sequence[LinkSamples], most: float = inf) -> Links:
    """Returns the common link, and the pairs whose delay differs by a factor above ``ALIKE``.

    ``most``: milliseconds of a longer message, which the common latency cannot exceed.
    """
    common = link_of(samples, most)
    size = samples[0].size
    measured = [(sample.ranks, link_of([sample])) for sample in samples]
    pairs = [
        (*ranks, link)
        for ranks, link in measured
        if not 1 / ALIKE <= link.delay(size) / common.delay(size) <= ALIKE
    ]
    return Links(common, tuple(pairs))


def link_of(samples: Sequence[LinkSamples], most: float = inf) -> Link:
    """Returns the link that fits the median times of small and large messages.

    The latency is at most ``most`` milliseconds.
    """
    latency = statistics.median(t for sample in samples for t in sample.small)
    large = statistics.median(t for sample in samples for t in sample.large)
    # if the effect of the size is within the noise: assume a thousandth of the time
    latency = min(latency, large * 0.999, most)
    return Link(latency, max(samples[0].size, 1) / ((large - latency) * 1e6))
