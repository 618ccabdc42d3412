"""Measures messages between neighboring ranks, and copies between a device and its host.

Messages are timed by ping-pong over a transport like the executor's, copies by the functions that
the ops O and L use.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import torch

from pipeloom.ir.model.profile import Link, Links

from ..device import Device
from ..executor.offload import Host
from ..measure.op_timer import make_clock
from ..transport import Routes, Transport

SMALL = 8  # bytes; the time of such a message is the latency
LARGE = 1 << 22  # bytes; shorter messages are too noisy to determine a bandwidth
COPIED = {"cpu": 1 << 23, "cuda": 1 << 27}  # bytes; offloaded tensors are large
MESSAGES = 20  # round trips of each size on each link, and copies of each size, that count
WARMUP = 3
# milliseconds for which a GPU is kept busy before a message, as in a pipeline, where the host has
# queued work ahead of the GPU
AHEAD = 5.0
# links whose delays differ by at most this factor count as equal: the medians are noisy
ALIKE = 3.0


@dataclass(frozen=True, slots=True)
class LinkSamples:
    """One-way times of messages between two ``ranks``, or of copies to the host and back.

    ``times``: for each size in bytes, a list of milliseconds. For copies, both ``ranks`` are the
    rank that made them.
    """

    ranks: tuple[int, int]
    times: Mapping[int, Sequence[float]]


def ring(ranks: int) -> list[tuple[int, int]]:
    """Returns the pairs of neighbors in a ring of ``ranks`` ranks, each with the lower rank first.

    The pairs are in ascending order. For one rank, returns an empty list.
    """
    pairs = {(min(r, (r + 1) % ranks), max(r, (r + 1) % ranks)) for r in range(ranks)}
    return sorted(pairs) if ranks > 1 else []


def ring_routes(ranks: int, timeout: float) -> Routes:
    """Returns routes in both directions between all neighbors in a ring of ``ranks`` ranks.

    ``timeout``: the maximum seconds of a message.
    """
    pairs = ring(ranks)
    return Routes.of([*pairs, *((b, a) for a, b in pairs)], (), timeout)


def probe_links(transport: Transport, largest: int, device: torch.device) -> list[LinkSamples]:
    """Returns the measured message times of the links between this rank and higher neighbors.

    Neighbors are the adjacent ranks in a ring, which ``transport`` connects. All links are measured
    one after the other. ``largest``: the bytes of the largest activation; messages of this size,
    small and large ones are measured. All ranks call it.
    """
    found = []
    for a, b in ring(transport.size):
        transport.barrier()
        if transport.rank in (a, b):
            times = {
                size: _ping_pong(transport, (a, b), size, device)
                for size in sorted({SMALL, largest, max(largest, LARGE)})
            }
            found += [LinkSamples((a, b), times)] if transport.rank == a else []
    transport.barrier()
    return found


def _ping_pong(
    transport: Transport, pair: tuple[int, int], size: int, device: torch.device
) -> list[float]:
    """Returns half the time, in milliseconds, of each of several round trips of ``size`` bytes.

    Both ranks of ``pair`` call it.
    """
    first, second = pair
    peer = second if transport.rank == first else first
    ping = torch.zeros(max(1, size), dtype=torch.uint8, device=device)
    pong = torch.zeros_like(ping)
    release = transport.releasing(pong)
    clock = make_clock(2, device)

    def there_and_back() -> None:
        # post the receive first, as the executor does
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
    for _ in range(WARMUP + MESSAGES):
        clock.start()
        if transport.rank == first:  # the other rank's stream is idle and waits for the ping
            Device(device).keep_busy(AHEAD)
        timed()
        begin, end = clock.seconds()
        times.append((end - begin) * 1e3 / 2)
    return times[WARMUP:]


def probe_host(device: torch.device, rank: int) -> LinkSamples:
    """Returns the times of copies between ``device`` and its host, as samples of ``rank``.

    Each is half the time of a copy to the host and a simultaneous one back. On a CPU, these are
    copies between buffers in the same memory.
    """
    host, sizes = Host(device), (SMALL, COPIED[device.type])
    return LinkSamples((rank, rank), {size: _copies(host, device, size) for size in sizes})


def _copies(host: Host, device: torch.device, size: int) -> list[float]:
    there, back = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    out, into = host.take(size), host.take(size)
    into.zero_()
    finish, times = Device(device).synchronize, []
    for _ in range(WARMUP + MESSAGES):
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
    """Returns latency and bandwidth of the links between all ranks.

    The result has a common link (see :func:`link_of`), and separate links for those measured pairs
    of ranks whose delay of the largest message differs from that of the common link by a factor
    above :data:`ALIKE`. ``most``: an upper bound of the common latency, in milliseconds.
    """
    common = link_of(samples, most)
    size = max(samples[0].times)
    measured = [(sample.ranks, link_of([sample])) for sample in samples]
    pairs = [
        (*ranks, link)
        for ranks, link in measured
        if not 1 / ALIKE <= link.delay(size) / common.delay(size) <= ALIKE
    ]
    return Links(common, tuple(pairs))


def link_of(samples: Sequence[LinkSamples], most: float = inf) -> Link:
    """Returns the latency and bandwidth that fit the times of the smallest and largest messages.

    The times are the medians over all ``samples``. ``most``: an upper bound of the latency, in
    milliseconds.
    """
    small, size = min(samples[0].times), max(samples[0].times)
    latency, large = (statistics.median(times_of(samples, each)) for each in (small, size))
    # if the large message is not measurably slower, assume that its bytes take 0.1 % of its time
    latency = min(latency, large * 0.999, most)
    return Link(latency, size / ((large - latency) * 1e6))


def times_of(samples: Sequence[LinkSamples], size: int) -> list[float]:
    """Returns the times of messages of ``size`` bytes in all ``samples``, in milliseconds."""
    return [time for sample in samples for time in sample.times[size]]
