"""A ring of network namespaces on this machine, two per rank, whose links have given rates.

::

      rank 0                   rank 1                   rank 2
        |                        |                        |
     router 0 ──── link 0 ──── router 1 ──── link 1 ──── router 2 ──── ... ──── router 0
           above          below      above          below

The namespace of a rank holds its address and is connected only to its router. Routers forward
messages along the ring in the shorter direction (:func:`following`). Each link is a veth pair,
shaped in both directions by a token bucket with a deep queue.

TCP is set up to send all available data immediately and to retransmit late. So a whole message lies
in the queue, and a link carries messages one after the other, first come, first served, as the cost
model assumes. (With TCP's own congestion control, messages would share a link, and all of them
would arrive late.) Nothing leaves the namespaces.
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

INTERFACE = "port"  # between a rank and its router
ABOVE, BELOW = "above", "below"  # a router's links to the next and to the previous router
# bytes that pass at full speed after a pause; few, so that short messages are delayed, too
SLOW_BURST, FAST_BURST = 10_000, 30_000
MTU = 9000  # jumbo frames: the CPU time of a frame does not depend on its size
QUEUE = 256_000_000  # bytes; large, so that nothing is dropped
# rp_filter is off because replies may take the other direction of the ring
SETTINGS = (
    "net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 "
    "net.ipv4.tcp_congestion_control=reno net.ipv4.tcp_no_metrics_save=1 "
    "net.ipv4.tcp_slow_start_after_idle=0 'net.ipv4.tcp_rmem=4096 33554432 67108864' "
    "'net.ipv4.tcp_wmem=4096 33554432 67108864'"
)
# a window that holds any message, and no retransmission of messages that only wait in a queue
TCP = "initcwnd 30000 initrwnd 30000 rto_min 20s"
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET in sched.h


@dataclass(frozen=True, slots=True)
class Ring:
    """``ranks`` in a ring; link i connects ranks i and i + 1 (mod ``ranks``).

    The link number ``slow`` carries ``slow_megabits`` per second in each direction, and each other
    link ``fast_megabits``.
    """

    ranks: int = 4
    slow: int = 1
    slow_megabits: int = 200
    fast_megabits: int = 1000

    def bucket(self, link: int) -> str:
        """The arguments with which ``tc`` shapes a link."""
        slow = link == self.slow
        rate, burst = (self.slow_megabits, SLOW_BURST) if slow else (self.fast_megabits, FAST_BURST)
        return f"tbf rate {rate}mbit burst {burst} limit {QUEUE}"


def following(source: int, target: int, ranks: int) -> int:
    """The rank after ``source`` on the path of a message to ``target``.

    The path takes the shorter direction around the ring, or the one of ascending ranks if both are
    equally long. Profiles whose links share a ``ring`` assume the same paths.
    """
    up = 2 * ((target - source) % ranks) <= ranks
    return (source + (1 if up else -1)) % ranks


def address(rank: int) -> str:
    """The IP address of a rank, to which Gloo binds.

    The router's end of the link to the rank has the next address.
    """
    return f"10.77.0.{4 * rank + 1}"


def own(maker: int, rank: int) -> str:
    return f"pipeloom-{maker}-rank{rank}"


def router(maker: int, rank: int) -> str:
    return f"pipeloom-{maker}-router{rank}"


def commands(ring: Ring, maker: int) -> Iterator[str]:
    """Yield the commands that build the ring in its namespaces, which exist already."""
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
            after = following(rank, other, ring.ranks)
            via = f"via 10.77.{after + 1}.1 dev {BELOW}"
            if after == (rank + 1) % ring.ranks:
                via = f"via 10.77.{rank + 1}.2 dev {ABOVE}"
            yield f"ip -n {router(maker, rank)} route add {address(other)}/32 {via}"


def _pair(*ends: tuple[str, str, str]) -> Iterator[str]:
    """Yield the commands that connect two interfaces, each given as (namespace, name, address)."""
    (low, first, _), (high, second, _) = ends
    peer = f"type veth peer name {second} mtu {MTU} netns {high}"
    yield f"ip -n {low} link add name {first} mtu {MTU} {peer}"
    for name, device, end in ends:
        yield f"ip -n {name} address add {end}/30 dev {device}"
        yield f"ip -n {name} link set {device} up"


@contextmanager
def namespaces(ring: Ring) -> Iterator[int]:
    """A context in which the ring exists.

    Yields the process id that is part of the namespaces' names. Rings left behind by killed
    processes are removed first. Raises InputError if the user or the machine cannot create the
    ring; what was created until then is removed.
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
    """The namespaces of rings whose process no longer exists."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    found = re.findall(r"^(pipeloom-(\d+)-(?:rank|router)\d+)\b", listed.stdout, re.MULTILINE)
    return [name for name, maker in found if not Path(f"/proc/{maker}").exists()]


def enter(name: str) -> None:
    """Move this thread, and all threads that it starts from now on, into a network namespace."""
    with Path("/run/netns", name).open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"setns: {name}")


def sent(name: str) -> dict[str, int]:
    """The bytes that a router has sent over each of its two links since the ring was created."""
    line = ["ip", "-n", name, "-s", "-j", "link"]
    listed = subprocess.run(line, capture_output=True, check=True)
    counts = {link["ifname"]: link["stats64"]["tx"]["bytes"] for link in json.loads(listed.stdout)}
    return {end: counts[end] for end in (ABOVE, BELOW)}
