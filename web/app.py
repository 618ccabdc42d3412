"""The routes of the server, as a Starlette application."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from pipeloom.ir.errors import Fault, InputError, PipeloomError
from pipeloom.planner.show import detail
from pipeloom.report.page import page_text

from . import answers, asked, jobs
from .guard import BODY_SECONDS, Guard
from .solves import BusyError, Solve, Solves, faults_of

LOOKING = 0.05
"""Seconds between two checks for new events of a solve."""
MOST_COMPUTING = 2
"""Number of answers that are computed at the same time; others wait."""


@dataclass
class Handlers:
    """The handlers of all routes. ``solves``: the solves that they start and read."""

    solves: Solves
    page: str
    _computing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_COMPUTING))

    async def show_page(self, request: Request) -> Response:
        return HTMLResponse(self.page, headers={"content-security-policy": policy(self.page)})

    async def profile(self, request: Request) -> Response:
        """Make a profile: of a preset model on a preset cluster, or from traces."""
        body = await request.body()
        return JSONResponse(await self._computed(lambda: asked.profile_made(asked.read(body))))

    async def solve(self, request: Request) -> Response:
        """Start a solve. The answer has its name, by which its events and results are read."""
        body = await request.body()
        solve = await self._computed(lambda: self._solve(body))
        started = await run_in_threadpool(self.solves.start, solve)  # may wait for others to stop
        return JSONResponse({"solve": started.name}, 202)

    def _solve(self, body: bytes) -> Solve:
        wanted = asked.SolveRequest.of(asked.read(body))
        earlier = self._found(wanted.start) if wanted.start else None
        if earlier is not None and not wanted.has_problem_of(earlier):
            raise InputError(Fault("expected a solve of the same problem", key="start"))
        job = jobs.frontier(wanted) if wanted.memory_limits else jobs.schedules(wanted, earlier)
        solve = Solve(job, wanted.given, wanted.facts)
        for event in wanted.events:
            jobs.SolveListener(solve, "")(event)
        return solve

    async def events(self, request: Request) -> Response:
        """Stream the events of a solve until it ends (server-sent events)."""
        solve = self._found(request.path_params["solve"])
        last = request.headers.get("last-event-id", "0")
        number = int(last) if last.isdecimal() and len(last) < 10 else 0
        return StreamingResponse(_stream(solve, number), media_type="text/event-stream")

    async def stop(self, request: Request) -> Response:
        self._found(request.path_params["solve"]).stop()
        return JSONResponse({})

    async def row(self, request: Request) -> Response:
        """The schedule of a row, with what is drawn of it."""
        solve, row = self._row(request)
        drawn = await self._computed(lambda: detail(row.schedule))
        return JSONResponse(drawn | answers.lines(solve, row))

    async def download(self, request: Request) -> Response:
        solve, row = self._row(request)
        name = request.path_params["name"]
        if name not in answers.DOWNLOADS:
            raise HTTPException(404, f"file: expected one of {', '.join(answers.DOWNLOADS)}")
        _, made = answers.DOWNLOADS[name]
        data = await self._computed(lambda: made(solve, row.schedule))
        attachment = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(data, media_type="application/octet-stream", headers=attachment)

    async def _computed(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` in a thread, a few at a time, so that the server goes on answering."""
        async with self._computing:
            return await run_in_threadpool(function)

    def _found(self, name: str) -> Solve:
        try:
            return self.solves.get(name)
        except KeyError:
            raise HTTPException(404, "solve: not kept any more: solve again") from None

    def _row(self, request: Request) -> tuple[Solve, Any]:
        solve, number = self._found(request.path_params["solve"]), request.path_params["row"]
        rows = {at: row for at, row in enumerate(solve.rows) if row.planned is not None}
        if number not in rows:
            raise HTTPException(404, "row: expected one with a schedule")
        return solve, rows[number]


async def _stream(solve: Solve, number: int) -> AsyncIterator[str]:
    """Yield the events of ``solve`` after the one with this number, until it ends."""
    while True:
        ended = not solve.is_running
        for event in solve.after(number):
            number = event["number"]
            yield f"id: {number}\nevent: {event['kind']}\ndata: {json.dumps(event)}\n\n"
        if ended:
            return
        await asyncio.sleep(LOOKING)


def application(
    host: str = "127.0.0.1", *, solves: Solves | None = None, seconds: float = BODY_SECONDS
) -> ASGIApp:
    """The application with its guard. ``host``: the address at which the server listens.

    ``seconds``: the time limit for receiving the body of a request.
    """
    routes = Handlers(solves or Solves(), page_text(answers.choices()))
    one = "/api/solves/{solve:str}"
    table = [
        Route("/", routes.show_page, methods=["GET"]),
        Route("/api/profile", routes.profile, methods=["POST"]),
        Route("/api/solves", routes.solve, methods=["POST"]),
        Route(f"{one}/events", routes.events, methods=["GET"]),
        Route(f"{one}/stop", routes.stop, methods=["POST"]),
        Route(one + "/rows/{row:int}", routes.row, methods=["GET"]),
        Route(one + "/rows/{row:int}/{name:str}", routes.download, methods=["GET"]),
    ]
    handlers: dict[Any, Any] = dict.fromkeys((PipeloomError, HTTPException, Exception), _failed)
    return Guard(Starlette(routes=table, exception_handlers=handlers), host, seconds)


def policy(page: str) -> str:
    """The content security policy: only the page's own style and script, and only this server."""
    style, script = (_digest(page, tag) for tag in ("style", "script"))
    return (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
        "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def _digest(page: str, tag: str) -> str:
    inside = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return b64encode(sha256(inside.encode()).digest()).decode()


async def _failed(request: Request, error: Exception) -> Response:
    """Answer with the faults of an error, and a status by its type."""
    if isinstance(error, HTTPException):
        return JSONResponse({"faults": faults_of(InputError(error.detail))}, error.status_code)
    own = 429 if isinstance(error, BusyError) else 422
    status = own if isinstance(error, PipeloomError) else 500
    return JSONResponse({"faults": faults_of(error)}, status)
