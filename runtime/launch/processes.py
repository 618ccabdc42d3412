"""Starts one process per rank on this machine, or joins the processes that torchrun started.

The first failure wins: when one rank throws or dies, the others are ended and one error names it.
No process outlives its parent. ``torch.distributed.elastic`` and ``torch.multiprocessing`` do
neither: of several failures they tell whichever process they join first, a parent's death ends no
child of a fork server (which spares each process seconds of imports), and the store of an elastic
launch listens on all interfaces.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ..device import check_devices
from ..errors import LaunchError
from .child import Told, call_here, run_child, tell
from .environment import world
from .failures import Names, earliest

LOOPBACK = "127.0.0.1"
FROZEN = "pipeloom.runtime.launch.forked"  # the last
PRELOADED = ("torch", "torch._dynamo", "numba", "pipeloom.runtime.train.train", FROZEN)
GRACE = 5.0  # seconds between asking a process to end and ending it
SETTLE = 0.2  # seconds in which a failure may turn out to be the echo of another rank's death
ECHO = 2.0  # seconds in which the peers of a dead rank may say where they were waiting for it
LOST = 255  # the exit code that multiprocessing makes up once the fork server is gone


def launch_ranks(
    function: Callable[..., Any],
    ranks: int,
    args: Sequence[Any] = (),
    *,
    replicas: int = 1,
    device: torch.device | str = "cpu",
    timeout: float | None = None,
    message_timeout: float = 300.0,
    listener: Callable[[Any], object] | None = None,
) -> dict[int, Any]:
    """Calls ``function(*args)`` in each of ``ranks`` processes, and returns each one's result.

    With a ``listener`` the function has one argument more, which hands what it is called with to
    the listener, in this process.

    With ``replicas`` there are as many times so many processes, numbered replica by replica, and
    errors say which rank of which replica they are of.

    ``torch.distributed`` is initialised around the call, for messages between tensors on the
    ``device``; on ``cuda`` the ranks of a machine take its GPUs in turn. Where the environment has
    ``RANK`` and ``WORLD_SIZE`` (torchrun), this process is one of them: the function is called here
    and the result holds this rank alone. Otherwise processes are spawned on this machine: the
    function must be importable, and what goes in and out must pickle. ``timeout`` bounds the whole,
    ``message_timeout`` any one message (seconds).

    Raises LaunchError where a spawned process fails, InputError where torchrun started another
    number of processes, or this machine has no GPU.
    """
    names, device = Names(ranks, replicas), torch.device(device)
    if device.type == "cuda":
        check_devices()
    joined = world()
    if joined is not None:
        heard = args if listener is None else (*args, listener)
        names.check(joined[1])
        return {joined[0]: call_here(function, heard, device, message_timeout)}
    with _Workers(names, listener) as workers:
        heard = args if listener is None else (*args, tell)
        workers.start(function, heard, device, message_timeout)
        return workers.results(None if timeout is None else time.monotonic() + timeout)


def served_store() -> TCPStore:
    """The rendezvous, on a port that the system picks, so that nobody takes it before; a store
    that torch binds itself listens on all interfaces, and has no secret."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        port = listening.getsockname()[1]
        return TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )


class _Workers:
    """The spawned processes of one launch; leaving the context ends those that still run."""

    def __init__(self, names: Names, listener: Callable[[Any], object] | None = None) -> None:
        self._names, self._listener = names, listener
        self._store = served_store()
        self._pipes: dict[int, Connection] = {}
        self._processes: dict[int, BaseProcess] = {}

    def start(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        device: torch.device,
        message_timeout: float,
    ) -> None:
        """Starts the processes. Raises LaunchError where that fails."""
        context, names = _context(), self._names
        call = (function, tuple(args), device, message_timeout)
        for rank in range(names.count):
            environment = _environment(rank, names.count, self._store.port)
            try:
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=run_child,
                    args=(theirs, environment, names, call),
                    daemon=True,
                    name=names.of(rank),
                )
                process.start()
            except (EOFError, ConnectionError) as error:
                raise LaunchError(f"{names.of(rank)}: the fork server died", rank=rank) from error
            except OSError as error:  # too many open files, too long a TMPDIR for sockets
                raise LaunchError(f"{names.of(rank)}: cannot start: {error}", rank=rank) from error
            theirs.close()
            self._pipes[rank], self._processes[rank] = ours, process

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        running = [p for p in self._processes.values() if p.is_alive()]
        for process in running:
            process.terminate()
        for process in self._processes.values():
            process.join(GRACE)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes.values():
            pipe.close()

    def results(self, deadline: float | None) -> dict[int, Any]:
        """Every rank's result. Raises LaunchError for the earliest failure, or at the deadline.

        A dead rank's peers often report first. The dead cannot say where they were; the first peer
        that was waiting for them can. So other answers are waited for a moment after a failure.
        """
        answers: dict[int, Any] = {}
        failures: list[LaunchError] = []
        until = inf if deadline is None else deadline
        while pending := [rank for rank in self._pipes if rank not in answers]:
            ready = self._ready(pending, until)
            if not ready:
                break
            answers |= self._answers(ready)
            failures = [answer for answer in answers.values() if isinstance(answer, LaunchError)]
            if failures:
                grace = ECHO if all(f.moment == 0.0 for f in failures) else SETTLE
                until = min(until, time.monotonic() + grace)
        if failures:
            raise earliest(failures)
        if pending:
            raise LaunchError(f"no answer in time from {self._names.of(*pending)}")
        return dict(sorted(answers.items()))

    def _ready(self, ranks: Sequence[int], until: float) -> list[int]:
        left = None if until == inf else max(0.0, until - time.monotonic())
        signs = {rank: (self._pipes[rank], self._processes[rank].sentinel) for rank in ranks}
        ready = wait([sign for pair in signs.values() for sign in pair], left)
        return [rank for rank, pair in signs.items() if any(sign in ready for sign in pair)]

    def _answers(self, ranks: Sequence[int]) -> dict[int, Any]:
        """The results of those ranks that are done; the listener is handed what others send
        meanwhile."""
        messages = {rank: self._answer(rank) for rank in ranks}
        for message in messages.values():
            if isinstance(message, Told) and self._listener is not None:
                self._listener(message.value)
        return {rank: m for rank, m in messages.items() if not isinstance(m, Told)}

    def _answer(self, rank: int) -> Any:
        pipe, process = self._pipes[rank], self._processes[rank]
        try:
            if pipe.poll(SETTLE):
                return pickle.loads(pipe.recv_bytes())
        except EOFError:
            process.join(GRACE)
        name = self._names.of(rank)
        if process.exitcode == LOST:
            return LaunchError(f"{name}: its fork server died, all ranks are ended", rank=rank)
        return LaunchError(f"{name} died{_cause(process.exitcode)}", rank=rank)


def _context() -> ForkServerContext | SpawnContext:
    """The way to start processes: on Linux a server that has imported torch once and forks;
    elsewhere new ones.

    Importing torch, and what its optimizers import when first used, is seconds of each process's
    start. The server only imports: no thread of torch's runs, and no device is touched.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _cause(code: int | None) -> str:
    if code is None:
        return ""
    return f" with exit code {code}" if code >= 0 else f" by {signal.Signals(-code).name}"


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables that torchrun would set, for a rendezvous that the parent serves."""
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return environment
