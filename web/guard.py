"""Refuses requests before they reach a route: of other hosts, from other origins, too large or too
slow.

A page of another site could otherwise start solves, and with DNS rebinding read their results.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeloom.ir.errors import Fault, InputError

from .solves import faults_of

MOST_BYTES = 16 * 2**20
"""Maximum size of the body of a request."""
BODY_SECONDS = 10.0
"""Time limit for receiving the body of a request."""
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of all responses."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at the address or name ``host``."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def fault(key: str, words: str) -> dict[str, object]:
    """The JSON object of an answer with a single fault."""
    return {"faults": faults_of(InputError(Fault(words, key=key)))}


@dataclass(frozen=True)
class Guard:
    """An ASGI application that passes acceptable requests on to ``app``.

    ``host``: the address or name at which the server listens. On loopback, the header Host must be
    a loopback address or ``localhost``; elsewhere, it may also be ``host`` or any IP address, since
    an address cannot be rebound to another machine as a name can. ``seconds``: the time limit for
    the body of a request.
    """

    app: ASGIApp
    host: str = "127.0.0.1"
    seconds: float = BODY_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        status, answer = next(self._refusals(scope["method"], headers), (0, {}))
        app = JSONResponse(answer, status) if status else self.app
        if not status:
            receive = _bounded(receive, self.seconds)
        return await app(scope, receive, _with_headers(send))

    def _refusals(self, method: str, headers: Headers) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield the status and the answer for each reason to refuse a request."""
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not self._is_own(host):
            yield 421, fault("Host", f"expected the address of this server, got {host[:60]!r}")
        origin = headers.get("origin", f"http://{host}")
        if origin != f"http://{host}":
            yield 403, fault("Origin", f"expected the page of this server, got {origin[:60]!r}")
        other = headers.get("sec-fetch-site") in {"cross-site", "same-site"}
        if other and headers.get("sec-fetch-mode") != "navigate":
            yield 403, fault("Origin", "expected the page of this server, got another site")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            yield 415, fault("Content-Type", f"expected application/json, got {kind[:60]!r}")
        if (size := headers.get("content-length", "0")).isdecimal() and int(size) > MOST_BYTES:
            yield 413, fault("body", f"expected at most {MOST_BYTES} bytes, got {size[:20]}")

    def _is_own(self, header: str) -> bool:
        try:
            name = urlsplit(f"http://{header}").hostname or ""
        except ValueError:
            return False
        if is_loopback(name):
            return True
        return not is_loopback(self.host) and (name == self.host.lower() or _is_address(name))


def _bounded(receive: Receive, seconds: float) -> Receive:
    """Return ``receive`` with limits on the size of the body and on the time until it is complete.

    The returned function raises HTTPException (413 or 408) beyond them.
    """
    end, size, complete = monotonic() + seconds, 0, False

    async def received() -> Message:
        nonlocal size, complete
        if complete:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, end - monotonic()))
        except TimeoutError:
            raise HTTPException(408, f"body: expected all of it within {seconds:g} s") from None
        size += len(message.get("body", b""))
        if size > MOST_BYTES:
            raise HTTPException(413, f"body: expected at most {MOST_BYTES} bytes")
        complete = not message.get("more_body", False)
        return message

    return received


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            more = ((name.encode(), value.encode()) for name, value in HEADERS.items())
            message["headers"] = [*message["headers"], *(x for x in more if x[0] not in given)]
        await send(message)

    return sent
