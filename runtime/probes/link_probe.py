"""Time of messages between neighbouring ranks, by ping-pong over the executor's own transport, and
of copies between a device and its host, by the copy channels that offload uses."""

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

SMALL = 8  # bytes: what such a message takes is the latency
LARGE = 1 << 22  # bytes: what a shorter one takes beyond that is noise, and no bandwidth
COPIED = {"cpu": 1 << 23, "cuda": 1 << 27}  # bytes: what is offloaded is large
MESSAGES = 20  # round trips of each size on each link
WARMUP = 3
# milliseconds by which hosts are ahead of a GPU, as in a pipeline: messages wait for none
AHEAD = 5.0
# links whose delays differ by less count as the same: medians of short messages are noisy
ALIKE = 3.0


@dataclass(frozen=True, slots=True)
class LinkSamples:
    """One-way milliseconds between two ranks, of small messages and of those of ``size`` bytes."""

    ranks: tuple[int, int]
    size: int
    small: Sequence[float]
    large: Sequence[float]


class LinkParts(NamedTuple):
    """Messages as large as an activation, and large ones; copies to the host and back."""

    messages: Sequence[LinkSamples] = ()
    links: Sequence[LinkSamples] = ()
    host: Sequence[LinkSamples] = ()

    @classmethod
    def joined(cls, parts: Iterable[LinkParts]) -> LinkParts:
        """The links of several processes."""
        return cls(*(list(chain(*each)) for each in zip(*parts, strict=True)))


def probed_links(
    transport: Transport, largest: int, device: torch.device, *, offload: bool
) -> LinkParts:
    """This rank's links, over a transport with routes of a ring; all ranks call it, with the
    ``largest`` activation's bytes."""
    sent = probe_links(transport, largest, MESSAGES, device)
    large = sent if largest >= LARGE else probe_links(transport, LARGE, MESSAGES, device)
    host = [probe_host(device, MESSAGES, transport.rank)] if offload else []
    return LinkParts(sent, large, host)


def ring(ranks: int) -> list[tuple[int, int]]:
    """The pairs of neighbours, the last and the first included."""
    pairs = {(min(r, (r + 1) % ranks), max(r, (r + 1) % ranks)) for r in range(ranks)}
    return sorted(pairs) if ranks > 1 else []


def ring_routes(ranks: int, timeout: float) -> Routes:
    """Routes in both directions between all neighbours."""
    pairs = ring(ranks)
    return Routes.of([*pairs, *((b, a) for a, b in pairs)], (), timeout)


def probe_links(
    transport: Transport, size: int, repeats: int, device: torch.device
) -> list[LinkSamples]:
    """The samples of each pair of neighbours, one pair after the other; all ranks call it, the
    lower of a pair measures."""
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
    """Half of each round trip, in milliseconds."""
    first, second = pair
    peer = second if transport.rank == first else first
    ping = torch.zeros(max(1, size), dtype=torch.uint8, device=device)
    pong = torch.zeros_like(ping)
    release = transport.releasing(pong)
    clock = make_clock(2, device)

    def there_and_back() -> None:
        # posted ahead, as the executor's receives are
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
        if transport.rank == first:  # the other's stream is idle and waits for the ping
            Device(device).keep_busy(AHEAD)
        timed()
        begin, end = clock.seconds()
        times.append((end - begin) * 1e3 / 2)
    return times[WARMUP:]


def probe_host(device: torch.device, repeats: int, rank: int) -> LinkSamples:
    """Milliseconds of a copy: half of one out to the host and one back, which the channels make one
    after the other.

    On a CPU, where the host is the same memory, of a copy from buffer to buffer.
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
    """The link of all pairs, and those whose delay differs by a factor above ``ALIKE``.

    ``most``: milliseconds that a longer message took, which the latency of all pairs cannot exceed.
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
    """Latency, ``most`` milliseconds at most, and bandwidth by which small and large messages take
    their median times."""
    latency = statistics.median(t for sample in samples for t in sample.small)
    large = statistics.median(t for sample in samples for t in sample.large)
    # where size drowns in the noise: as if it made a thousandth of the time
    latency = min(latency, large * 0.999, most)
    return Link(latency, max(samples[0].size, 1) / ((large - latency) * 1e6))
