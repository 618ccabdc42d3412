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

import ctypes
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeloom import InputError

INTERFACE = "port"  # joins a rank and its router
ABOVE, BELOW = "above", "below"  # a router's links to the next one and to the last one
# bytes that leave at once after a pause: small, so that a short message takes its time too
SLOW_BURST, FAST_BURST = 10_000, 30_000
MTU = 9000  # jumbo frames: each costs this machine's cores as much as a small one
QUEUE = 256_000_000  # bytes that may wait for a link: nothing is dropped
# the way back may be the other way round, so that rp_filter is off
SETTINGS = (
    "net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 "
    "net.ipv4.tcp_congestion_control=reno net.ipv4.tcp_no_metrics_save=1 "
    "net.ipv4.tcp_slow_start_after_idle=0 'net.ipv4.tcp_rmem=4096 33554432 67108864' "
    "'net.ipv4.tcp_wmem=4096 33554432 67108864'"
)
# a window that holds any message, and no message is sent again because it waits for others
TCP = "initcwnd 30000 initrwnd 30000 rto_min 20s"
_NEW_NETWORK = 0x40000000  # of sched.h: CLONE_NEWNET


@dataclass(frozen=True, slots=True)
class Ring:
    """``ranks`` in a ring; link i joins ranks i and i + 1 (mod ``ranks``), the ``slow`` one among
    them at ``slow_megabits`` a second in each direction, the others at ``fast_megabits``."""

    ranks: int = 4
    slow: int = 1
    slow_megabits: int = 200
    fast_megabits: int = 1000

    def bucket(self, link: int) -> str:
        """The shape of a link."""
        slow = link == self.slow
        rate, burst = (self.slow_megabits, SLOW_BURST) if slow else (self.fast_megabits, FAST_BURST)
        return f"tbf rate {rate}mbit burst {burst} limit {QUEUE}"


def way(source: int, target: int, ranks: int) -> list[int]:
    """The ranks that a message passes, both ends included: the shorter way round, upwards where
    both are as long (what profiles whose links share a ``ring`` mean)."""
    up = (target - source) % ranks
    step, hops = (1, up) if 2 * up <= ranks else (-1, ranks - up)
    return [(source + step * k) % ranks for k in range(hops + 1)]


def address(rank: int) -> str:
    """The rank's own, which Gloo binds to; the router's end of their link is the next one."""
    return f"10.77.0.{4 * rank + 1}"


def own(maker: int, rank: int) -> str:
    """The namespace of a rank."""
    return f"pipeloom-{maker}-rank{rank}"


def router(maker: int, rank: int) -> str:
    """The namespace of a rank's router."""
    return f"pipeloom-{maker}-router{rank}"


def commands(ring: Ring, maker: int) -> Iterator[str]:
    """The commands that make the ring in its namespaces, which exist."""
    for rank in range(ring.ranks):
        name, beside = own(maker, rank), router(maker, rank)
        for each in (name, beside):
            yield f"ip netns exec {each} sysctl -q -w {SETTINGS}"
        port = f"10.77.0.{4 * rank + 2}"
        yield f"ip -n {name} link set lo up"
        yield from _pair((name, INTERFACE, address(rank)), (beside, INTERFACE, port))
        yield f"ip -n {name} route add default via {port} {TCP}"
    for link in range(ring.ranks):
        low, high = router(maker, link), router(maker, (link + 1) % ring.ranks)
        yield from _pair((low, ABOVE, f"10.77.{link + 1}.1"), (high, BELOW, f"10.77.{link + 1}.2"))
        for name, device in ((low, ABOVE), (high, BELOW)):
            yield f"tc -n {name} qdisc add dev {device} root {ring.bucket(link)}"
    for rank in range(ring.ranks):
        for other in set(range(ring.ranks)) - {rank}:
            following = way(rank, other, ring.ranks)[1]
            via = f"via 10.77.{following + 1}.1 dev {BELOW}"
            if following == (rank + 1) % ring.ranks:
                via = f"via 10.77.{rank + 1}.2 dev {ABOVE}"
            yield f"ip -n {router(maker, rank)} route add {address(other)}/32 {via}"


def _pair(*ends: tuple[str, str, str]) -> Iterator[str]:
    """Two interfaces that are joined: of each its namespace, name and address."""
    (low, first, _), (high, second, _) = ends
    peer = f"type veth peer name {second} mtu {MTU} netns {high}"
    yield f"ip -n {low} link add name {first} mtu {MTU} {peer}"
    for name, device, end in ends:
        yield f"ip -n {name} address add {end}/30 dev {device}"
        yield f"ip -n {name} link set {device} up"


@contextmanager
def namespaces(ring: Ring) -> Iterator[int]:
    """The ring, for as long as the context lasts; gives the process that it is named after.

    Raises InputError where this user or this machine cannot make it; whatever was made until then
    is removed. Rings left by processes that were killed are removed first.
    """
    for tool in ("ip", "tc", "sysctl"):
        if shutil.which(tool) is None:
            raise InputError(f"{tool}: not found; the ring of namespaces needs it")
    if os.geteuid() != 0:
        raise InputError("user: expected root, who alone may make network namespaces")
    maker = os.getpid()
    names = [make(maker, rank) for rank in range(ring.ranks) for make in (own, router)]
    _remove(*_left_behind())
    try:
        for line in (*(f"ip netns add {name}" for name in names), *commands(ring, maker)):
            done = subprocess.run(shlex.split(line), capture_output=True, text=True, check=False)
            if done.returncode:
                why = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
                raise InputError(f"{line}: {why}")
        yield maker
    finally:
        _remove(*names)


def _remove(*names: str) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _left_behind() -> list[str]:
    """Namespaces of ours whose maker is gone."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    found = re.findall(r"^(pipeloom-(\d+)-(?:rank|router)\d+)\b", listed.stdout, re.MULTILINE)
    return [name for name, maker in found if not Path(f"/proc/{maker}").exists()]


def enter(name: str) -> None:
    """Moves this thread, and those that it starts from now on, into a namespace."""
    with Path("/run/netns", name).open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"setns: {name}")


def sent(name: str) -> dict[str, int]:
    """Bytes that have left a router by each of its links since the ring was made."""
    line = ["ip", "-n", name, "-s", "-j", "link"]
    listed = subprocess.run(line, capture_output=True, check=True)
    counts = {link["ifname"]: link["stats64"]["tx"]["bytes"] for link in json.loads(listed.stdout)}
    return {end: counts[end] for end in (ABOVE, BELOW)}
