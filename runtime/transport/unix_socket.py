"""Short messages between ranks of one machine: one packet over a Unix socket, no thread, no
handshake.

Gloo wakes a thread on either side and asks for the receive before it sends, which costs more than
an op of the runtime itself. A packet is copied into the kernel when it is sent, and out of it when
it is waited for::

    send: ── packet ──▶ socket             recv: posted ─ posted ─ posted
          (full: a thread waits)           wait: read into the first, the second, ... until its own
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from torch import Tensor

from .base import Handle, Message, timed_out
from .posted import PostedMessages, Posts

SHORT = 1 << 16  # bytes; above it Gloo's threads pay, for they move a message while an op runs
ROOM = 64 * SHORT  # bytes that a socket is asked to hold for its peer
NAMESPACES = ("net", "mnt")


class Sent:
    """A packet that the kernel has."""

    def wait(self) -> None:
        pass


_SENT = Sent()


class _Kept:
    """A packet that found the socket full, and is its thread's."""

    __slots__ = ("_done", "_error", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._done, self._error = threading.Event(), ""

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def wait(self) -> None:
        self._done.wait()
        if self._error:
            raise ConnectionError(self._error)

    def end(self, error: str = "") -> None:
        self._error = error
        self._done.set()


class _Posted:
    """A receive; packets fill receives in the order in which they were posted."""

    __slots__ = ("buffer", "came", "link")

    def __init__(self, link: Link, buffer: Tensor) -> None:
        self.link, self.buffer, self.came = link, buffer, False

    def wait(self) -> None:
        while not self.came:
            self.link.read()


class Link:
    """Both directions between this rank and ``peer``."""

    def __init__(self, connection: socket.socket, peer: int, timeout: timedelta) -> None:
        self._connection, self._peer = connection, peer
        self._patience = timeout.total_seconds()
        limit = struct.pack("ll", int(timeout.total_seconds()), timeout.microseconds)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)  # as far as allowed
        self._posted: deque[_Posted] = deque()
        self._kept: SimpleQueue[_Kept | None] = SimpleQueue()
        self._last: _Kept | None = None
        self._thread: threading.Thread | None = None

    def send(self, tensor: Tensor) -> Sent | _Kept:
        if self._last is None or self._last.done:
            try:
                self._connection.send(_bytes(tensor), socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            else:
                return _SENT
        return self._keep(tensor)

    def recv(self, buffer: Tensor) -> _Posted:
        posted = _Posted(self, buffer)
        self._posted.append(posted)
        return posted

    def read(self) -> None:
        """Waits for the packet of the next receive that was posted."""
        posted = self._posted[0]
        self.fill(_bytes(posted.buffer))
        posted.came = True
        self._posted.popleft()

    def fill(self, memory: Any) -> None:
        """Waits for the next packet. Raises TimeoutError, ConnectionError."""
        try:
            size = self._connection.recv_into(memory, 0, socket.MSG_TRUNC)
        except BlockingIOError:
            raise self._timed_out("recv") from None
        if size == 0:
            raise ConnectionError(f"connection closed by peer, rank {self._peer}")
        if size != len(memory):
            raise ConnectionError(f"a message of {size} bytes came, expected {len(memory)}")

    def close(self) -> None:
        self._kept.put(None)
        if self._thread is not None:
            self._thread.join()
        self._connection.close()

    def _keep(self, tensor: Tensor) -> _Kept:
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_kept, daemon=True)
            self._thread.start()
        self._last = _Kept(tensor.detach())
        self._kept.put(self._last)
        return self._last

    def _send_kept(self) -> None:
        while (kept := self._kept.get()) is not None:
            try:
                self._connection.send(_bytes(kept.tensor))
            except BlockingIOError:
                kept.end(str(self._timed_out("send")))
            except OSError as error:
                kept.end(str(error))
            else:
                kept.end()

    def _timed_out(self, what: str) -> TimeoutError:
        return timed_out(f"{what} operation to complete", self._patience)


class _Arrivals:
    """A step's packets from one peer: where each goes, and how many have come."""

    __slots__ = ("came", "link", "memory")

    def __init__(self, link: Link) -> None:
        self.link, self.came = link, 0
        self.memory: list[Any] = []

    def read(self) -> None:
        self.link.fill(self.memory[self.came])
        self.came += 1


class _Arrival:
    """The packet of every step that fills one buffer; those before it are read first.

    Its post is its place in that order.
    """

    __slots__ = ("_arrivals", "_buffer", "_number")
    post = None

    def __init__(self, arrivals: _Arrivals, buffer: Tensor) -> None:
        self._arrivals, self._buffer = arrivals, buffer
        self._number = len(arrivals.memory)
        arrivals.memory.append(_bytes(buffer))

    def wait(self) -> None:
        arrivals = self._arrivals
        while arrivals.came <= self._number:
            arrivals.read()


class _Departure:
    """What one instruction sends in every step: a packet, unless it is too large for one."""

    __slots__ = ("_handle", "_link", "_peer", "_posts", "_take")

    def __init__(self, link: Link, posts: Posts, take: Callable[[], Tensor], peer: int) -> None:
        self._link, self._posts, self._take, self._peer = link, posts, take, peer
        self._handle: Handle = _SENT

    def post(self) -> None:
        tensor = self._take()
        if fits(tensor):
            self._handle = self._link.send(tensor)
        else:
            self._handle = self._posts.send(tensor.detach(), self._peer)

    def wait(self) -> None:
        if self._handle is not _SENT:
            self._handle.wait()
            self._handle = _SENT


class Packets:
    """A step's messages: packets where the peer has a link and they fit."""

    def __init__(self, links: Mapping[int, Link], posts: Posts) -> None:
        self._posts, self._links, self._others = posts, links, PostedMessages(posts)
        self._arrivals = {peer: _Arrivals(link) for peer, link in links.items()}

    def begin(self) -> None:
        for arrivals in self._arrivals.values():
            arrivals.came = 0

    def sending(self, take: Callable[[], Tensor], peer: int) -> Message:
        link = self._links.get(peer)
        if link is None:
            return self._others.sending(take, peer)
        return _Departure(link, self._posts, take, peer)

    def receiving(self, buffer: Tensor, peer: int) -> Message:
        if peer in self._links and fits(buffer):
            return _Arrival(self._arrivals[peer], buffer)
        return self._others.receiving(buffer, peer)


def fits(tensor: Tensor) -> bool:
    """Whether it is sent as a packet; both ends tell by the size."""
    return 0 < tensor.nbytes <= SHORT


def links(
    rank: int,
    channels: Iterable[tuple[int, int]],
    timeout: timedelta,
    gather: Callable[[Any], list[Any]],
) -> dict[int, Link]:
    """This rank's links, by peer: to those on its machine that it has a channel with.

    Every rank calls it; ``gather`` gives all ranks what each one passed.
    """
    with tempfile.TemporaryDirectory(prefix="pipeloom-") as folder:
        path = str(Path(folder, str(rank)))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            where = _machine()
            if where is not None:
                listener.bind(path)
                listener.listen(socket.SOMAXCONN)
            rows = gather((where, path))
            near = {
                peer
                for peer, (other, _) in enumerate(rows)
                if other == where is not None
                and ((rank, peer) in channels or (peer, rank) in channels)
            }
            found = {peer: _called(rows[peer][1], rank) for peer in near if peer < rank}
            for _ in [peer for peer in near if peer > rank]:
                connection, _address = listener.accept()
                found[int(connection.recv(16))] = connection
            gather(None)  # nobody removes its folder before all have connected
    return {peer: Link(connection, peer, timeout) for peer, connection in found.items()}


def _called(path: str, rank: int) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    connection.send(str(rank).encode())
    return connection


def _machine() -> tuple[object, ...] | None:
    """The same for processes that reach each other's sockets over one kernel; None if unknown.

    Processes in network namespaces of their own are apart on purpose, as over a slowed link.
    """
    if sys.platform != "linux":
        return None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return (boot, os.getuid(), *(Path(f"/proc/self/ns/{n}").stat().st_ino for n in NAMESPACES))
    except OSError:
        return None


def _bytes(tensor: Tensor) -> Any:
    """The tensor's memory, without a copy; it must outlive what is returned."""
    return _array(tensor.nbytes).from_address(tensor.data_ptr())


@cache
def _array(size: int) -> Any:
    return ctypes.c_char * size
