"""Listens on a port and runs the application until Ctrl-C or SIGTERM."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipeloom.ir.errors import Fault, InputError, in_brief

from .app import application
from .guard import is_loopback
from .solves import Solves

PORT, TRIED = 8080, 40
"""The default port, and the number of ports tried from there on."""
MOST_CONNECTIONS = 64
SILENCE = 10.0
"""Seconds after which a connection without a complete request is closed."""
LEAST_READ = 2**16
"""Bytes that the reader of a long answer has to read in these seconds."""


@dataclass(frozen=True)
class Listening:
    """A socket that listens at ``host``."""

    host: str
    socket: socket.socket

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    def __str__(self) -> str:
        reach = "" if is_loopback(self.host) else "; other machines can reach it"
        return f"{self.url} (Ctrl-C ends it{reach})"

    def serve(self, *, open_page: bool = False) -> None:
        """Answer requests until Ctrl-C or SIGTERM; then stop all solves.

        ``open_page``: whether to open the page in a browser.
        """
        solves = Solves()
        how: dict[str, Any] = {"ws": "none", "lifespan": "off", "log_level": "critical"}
        how |= {"limit_concurrency": MOST_CONNECTIONS, "timeout_graceful_shutdown": 1}
        app = application(self.host, solves=solves)
        config = uvicorn.Config(app, http=Patient, access_log=False, **how)
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # readers may leave
        sys.stdout.flush()
        if open_page:
            webbrowser.open(self.url)
        try:
            Server(config).run(sockets=[self.socket])
        finally:
            solves.close()


def bound(host: str, port: int | None = None) -> Listening:
    """Listen at ``host``: on ``port``, or on the first free port from 8080 on if it is None.

    Raises InputError if the port is in use, or if this machine does not have that address.
    """
    for each in range(PORT, PORT + TRIED) if port is None else [port]:
        try:
            return Listening(host, _listening(host, each))
        except OSError as error:
            if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                expected = "an address or name of this machine"
                words = f"expected {expected}, got {host!r} ({in_brief(error)})"
                raise InputError(Fault(words, key="host")) from None
    wanted = f"{port}" if port is not None else f"{PORT} to {PORT + TRIED - 1}"
    raise InputError(Fault(f"expected a free port that may be used, got {wanted}", key="port"))


def _listening(host: str, port: int) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind, proto)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(MOST_CONNECTIONS)
    except OSError:
        found.close()
        raise
    return found


class Patient(H11Protocol):
    """The HTTP protocol of uvicorn, which also ends connections that send no complete request in
    time, or read too little of an answer."""

    silence = SILENCE

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(self.silence, self._check, 0)

    def _check(self, before: int) -> None:
        """End the connection if it is too slow; else check it again later. ``before``: the number
        of bytes that the client still had to read at the check before this one."""
        left = self.transport.get_write_buffer_size()
        if self.cycle is None or (left and left > before - LEAST_READ and before):
            self.transport.abort()
        elif left or not self.transport.is_closing():
            self.loop.call_later(self.silence, self._check, left)


class Server(uvicorn.Server):
    """A server of uvicorn that ends on signals without raising them again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
