"""A running ``pipeloom serve``, and requests to it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from tests.support.processes import ENVIRONMENT

PROFILE: dict[str, Any] = {
    "format": "pipeloom.profile",
    "version": 1,
    "name": "page",
    "ranks": 4,
    "num_stages": 4,
    "stages": [{"t_f": 10, "t_b": 10, "t_w": 8, "m_b": 1, "m_w": 0.5}],
    "t_comm": 0.5,
}
QUICK: dict[str, Any] = {"microbatches": 6, "time_limit": 0.3, "placements": ["linear"]}
LONG: dict[str, Any] = {"microbatches": 24, "time_limit": 100, "placements": ["wave:2"]}
"""A search that does not end by itself within the time of a test."""


@dataclass(frozen=True)
class Answer:
    status: int
    data: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def faults(self) -> list[tuple[str, str]]:
        """The key and the words of each fault."""
        return [(fault["key"], fault["words"]) for fault in self.json["faults"]]


@dataclass(frozen=True)
class Served:
    """A server at ``url``."""

    url: str

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def post(self, path: str, body: object) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.call("POST", path, data, {"Content-Type": "application/json"})

    def call(
        self, method: str, path: str, data: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        with self._connected() as connection:
            connection.request(method, path, data, dict(headers or {}))
            found = connection.getresponse()
            return Answer(found.status, found.read(), {k.lower(): v for k, v in found.getheaders()})

    @contextmanager
    def _connected(self) -> Iterator[HTTPConnection]:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        try:
            yield connection
        finally:
            connection.close()

    def begin(self, **asked: Any) -> str:
        """Start a solve, and return its name."""
        answer = self.post("/api/solves", {"profile": PROFILE} | asked)
        assert answer.status == 202, answer.data
        return str(answer.json["solve"])

    def events(self, solve: str) -> Iterator[dict[str, Any]]:
        """Yield the events of a solve as they arrive, until it ends."""
        with self._connected() as connection:
            connection.request("GET", f"/api/solves/{solve}/events")
            for line in connection.getresponse():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    def solved(self, **asked: Any) -> tuple[str, dict[str, dict[str, Any]]]:
        """Run a solve to its end. Returns its name and its rows by name."""
        solve = self.begin(**asked)
        events = list(self.events(solve))
        assert events[-1]["state"] == "Done", events[-1]
        return solve, {event["name"]: event for event in events if event["kind"] == "row"}

    def stop(self, solve: str) -> dict[str, Any]:
        """Stop a solve, and return its last event."""
        assert self.post(f"/api/solves/{solve}/stop", {}).status == 200
        return list(self.events(solve))[-1]


@contextmanager
def serving(port: int = 0, end: signal.Signals = signal.SIGINT) -> Iterator[Served]:
    """A process of ``pipeloom serve`` at a port, by default a free one. It ends at once and
    silently, by the signal ``end``."""
    words = [sys.executable, "-m", "pipeloom", "serve", "--port", str(port), "--json"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=ENVIRONMENT, **pipes) as process:
        assert process.stdout is not None
        try:
            yield Served(json.loads(process.stdout.readline())["url"])
        finally:
            process.send_signal(end)
            _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0 if end is signal.SIGINT else -end, "")


Application = Callable[[Any, Any, Any], Awaitable[None]]


def asked(
    app: Application,
    method: str = "GET",
    path: str = "/",
    headers: Mapping[str, str] | None = None,
    chunks: Sequence[bytes] = (b"",),
    *,
    complete: bool = True,
) -> Answer:
    """Call an ASGI application in this process. ``complete``: whether the body's end is sent."""
    sent: list[dict[str, Any]] = []
    left = list(chunks)

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.Event().wait()  # the client sends no more
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left) or not complete}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    raw = {"host": "127.0.0.1:8080"} | dict(headers or {})
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "scheme": "http",
        "headers": [(key.lower().encode(), value.encode()) for key, value in raw.items()],
        "server": ("127.0.0.1", 8080),
    }
    asyncio.run(asyncio.wait_for(_run(app, scope, receive, send), 30))
    body = b"".join(message.get("body", b"") for message in sent)
    found = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], body, found)


async def _run(app: Application, scope: Any, receive: Any, send: Any) -> None:
    await app(scope, receive, send)
