"""A ring of network namespaces on this machine, two for each rank, with links of stated rates.

::

      rank 0                   rank 1                   rank 2
        |                        |                        |
     router 0 ──── link 0 ──── router 1 ──── link 1 ──── router 2 ──── ... ──── router 0
           above          below      above          below

A rank's namespace holds its address and leads to its router alone. Routers pass messages on along
the ring, the shorter way round (:func:`way`). Each link is a veth pair, shaped in both directions
by a token bucket with a deep queue. TCP is told to send what it has at once and to be patient: so a
message lies in the queue as a whole, and a link carries one message after the other, the first come
first, as the cost model says. (TCP's own control would share a link between messages, and all of
them would come late.) Nothing leads out of the namespaces.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pipeloom import InputError

PREFIX = "pipeloom"
INTERFACE = "port"  # joins a rank and its router
ABOVE, BELOW = "above", "below"  # a router's links to the next one and to the last one
# bytes that leave at once after a pause: small, so that a short message takes its time too
SLOW_BURST, FAST_BURST = 10_000, 30_000
MTU = "9000"  # jumbo frames: each costs this machine's cores as much as a small one
QUEUE = 256_000_000  # bytes that may wait for a link: nothing is dropped
SETTINGS = (
    "net.ipv4.ip_forward=1",
    "net.ipv4.conf.all.rp_filter=0",  # the way back may be the other way round
    "net.ipv4.conf.default.rp_filter=0",
    "net.ipv4.tcp_congestion_control=reno",
    "net.ipv4.tcp_no_metrics_save=1",
    "net.ipv4.tcp_slow_start_after_idle=0",
    "net.ipv4.tcp_rmem=4096 33554432 67108864",
    "net.ipv4.tcp_wmem=4096 33554432 67108864",
)
# a window that holds any message, and no message is sent again because it waits for others
TCP = ("initcwnd", "30000", "initrwnd", "30000", "rto_min", "20s")


@dataclass(frozen=True, slots=True)
class Ring:
    """``ranks`` in a ring; link i joins ranks i and i + 1 (mod ``ranks``), the ``slow`` one among
    them at ``slow_megabits`` a second in each direction, the others at ``fast_megabits``."""

    ranks: int = 4
    slow: int = 1
    slow_megabits: int = 200
    fast_megabits: int = 1000

    def megabits(self, link: int) -> int:
        return self.slow_megabits if link == self.slow else self.fast_megabits


def way(source: int, target: int, ranks: int) -> list[int]:
    """The ranks that a message passes, both ends included: the shorter way round, upwards where
    both are as long (what profiles whose links share a ``ring`` mean)."""
    up = (target - source) % ranks
    step, hops = (1, up) if 2 * up <= ranks else (-1, ranks - up)
    return [(source + step * k) % ranks for k in range(hops + 1)]


def address(rank: int) -> str:
    """The rank's own, which Gloo binds to."""
    return f"10.77.0.{4 * rank + 1}"


def port(rank: int) -> str:
    """The address of the rank's router on their common link."""
    return f"10.77.0.{4 * rank + 2}"


def ends(link: int) -> tuple[str, str]:
    """The addresses of a link's ends: of the lower router's ``above``, of the next one's
    ``below``."""
    return f"10.77.{link + 1}.1", f"10.77.{link + 1}.2"


@dataclass(frozen=True, slots=True)
class Names:
    """The namespaces of a ring: by rank, its own and its router's."""

    ranks: tuple[str, ...]
    routers: tuple[str, ...]

    @classmethod
    def of(cls, number: int, maker: int) -> Names:
        return cls(
            tuple(f"{PREFIX}-{maker}-rank{i}" for i in range(number)),
            tuple(f"{PREFIX}-{maker}-router{i}" for i in range(number)),
        )


def commands(ring: Ring, names: Names) -> list[list[str]]:
    """The commands that make the ring in the namespaces ``names``, which exist: one a list."""
    ranks = range(ring.ranks)
    made = [line for rank in ranks for line in _own(names, rank)]
    made += [line for link in ranks for line in _link(ring, names, link)]
    made += [
        _route(names.routers[rank], rank, other, ring.ranks)
        for rank in ranks
        for other in ranks
        if other != rank
    ]
    return made


def _own(names: Names, rank: int) -> list[list[str]]:
    """The rank, its router and what joins them."""
    own, router = names.ranks[rank], names.routers[rank]
    pair = ["mtu", MTU, "type", "veth", "peer", "name", INTERFACE, "mtu", MTU, "netns", router]
    lines = [
        ["ip", "netns", "exec", name, "sysctl", "-q", "-w", *SETTINGS] for name in (own, router)
    ]
    lines += [
        ["ip", "-n", own, "link", "set", "lo", "up"],
        ["ip", "-n", own, "link", "add", "name", INTERFACE, *pair],
    ]
    for name, end in ((own, address(rank)), (router, port(rank))):
        lines += _up(name, INTERFACE, end)
    lines.append(["ip", "-n", own, "route", "add", "default", "via", port(rank), *TCP])
    return lines


def _up(name: str, device: str, end: str) -> list[list[str]]:
    return [
        ["ip", "-n", name, "address", "add", f"{end}/30", "dev", device],
        ["ip", "-n", name, "link", "set", device, "up"],
    ]


def _link(ring: Ring, names: Names, link: int) -> list[list[str]]:
    """A pair of interfaces with their addresses and rates."""
    low, high = names.routers[link], names.routers[(link + 1) % ring.ranks]
    pair = ["mtu", MTU, "type", "veth", "peer", "name", BELOW, "mtu", MTU, "netns", high]
    lines = [["ip", "-n", low, "link", "add", "name", ABOVE, *pair]]
    for name, device, end in zip((low, high), (ABOVE, BELOW), ends(link), strict=True):
        lines += _up(name, device, end)
        lines.append(
            ["tc", "-n", name, "qdisc", "add", "dev", device, "root", *_bucket(ring, link)]
        )
    return lines


def _bucket(ring: Ring, link: int) -> list[str]:
    burst = SLOW_BURST if link == ring.slow else FAST_BURST
    return ["tbf", "rate", f"{ring.megabits(link)}mbit", "burst", str(burst), "limit", str(QUEUE)]


def _route(router: str, rank: int, other: int, ranks: int) -> list[str]:
    following = way(rank, other, ranks)[1]
    upwards = following == (rank + 1) % ranks
    device, via = (ABOVE, ends(rank)[1]) if upwards else (BELOW, ends(following)[0])
    return ["ip", "-n", router, "route", "add", f"{address(other)}/32", "via", via, "dev", device]


@contextmanager
def namespaces(ring: Ring) -> Iterator[Names]:
    """The ring, for as long as the context lasts.

    Raises InputError where this user or this machine cannot make it; whatever was made until then
    is removed. Rings left by processes that were killed are removed first.
    """
    need_tools()
    remove_left_behind()
    names = Names.of(ring.ranks, os.getpid())
    try:
        for name in (*names.ranks, *names.routers):
            _run(["ip", "netns", "add", name])
        for line in commands(ring, names):
            _run(line)
        yield names
    finally:
        for name in (*names.ranks, *names.routers):
            _remove(name)


def need_tools() -> None:
    """Raises InputError where namespaces cannot be made: not root, no ip, no tc."""
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("sysctl", "procps")):
        if shutil.which(tool) is None:
            raise InputError(f"{tool}: not found; the ring of namespaces needs it ({package})")
    if os.geteuid() != 0:
        raise InputError("user: expected root, who alone may make network namespaces")


def _run(line: Sequence[str]) -> None:
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        why = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise InputError(f"{' '.join(line)}: {why}")


def _remove(name: str) -> None:
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def remove_left_behind() -> None:
    """Removes namespaces of ours whose maker is gone."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    for name in (line.split()[0] for line in listed.stdout.splitlines() if line.strip()):
        maker = maker_of(name)
        if maker is not None and not _alive(maker):
            _remove(name)


def maker_of(name: str) -> int | None:
    """The process that made a namespace of ours; None of any other."""
    match = re.fullmatch(rf"{PREFIX}-(\d+)-(rank|router)\d+", name)
    return int(match[1]) if match else None


def _alive(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False
