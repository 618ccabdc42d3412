"""Starts one process per rank on this machine, or joins the processes that torchrun started.

If a rank raises or dies, the other ranks are ended and one error is raised that names the rank that
failed first. No process outlives its parent. ``torch.distributed.elastic`` and
``torch.multiprocessing`` guarantee neither: of several failures, they report that of the process
that they join first, and children of a fork server do not end with the parent. (The fork server
saves seconds of imports per process.) Besides, the rendezvous store of an elastic launch listens on
all network interfaces.
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
FROZEN = "pipeloom.runtime.launch.forked"  # must be the last module of PRELOADED
PRELOADED = ("torch", "torch._dynamo", "numba", "pipeloom.runtime.train.train", FROZEN)
GRACE = 5.0  # seconds between terminating and killing a process
SETTLE = 0.2  # seconds after a failure to wait for others, such as a rank's death that caused it
ECHO = 2.0  # seconds after a rank's death to wait for other ranks to report where they needed it
LOST = 255  # the exit code that multiprocessing reports if the fork server is gone


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
    """Calls ``function(*args)`` in each of ``ranks`` processes; returns the results by global rank.

    ``replicas``: if more than 1, there are ``ranks`` processes for each replica, numbered replica
    by replica, and errors name replica and rank. ``listener``: if given, ``function`` gets one more
    argument, a function that passes any value to the listener in this process.

    ``torch.distributed`` is initialized around the call, for messages of tensors on ``device``;
    with ``cuda``, the ranks of a machine are distributed over its GPUs. If ``RANK`` and
    ``WORLD_SIZE`` are set (torchrun), this process is one of the ranks: the function is called
    here, and the result only contains this rank. Otherwise, processes are started on this machine;
    the function must be importable, and arguments and results must be picklable. ``timeout``: the
    maximum seconds of the whole launch; None: no limit. ``message_timeout``: that of each message.

    Raises LaunchError if a started process fails or a result is not available in time, and
    InputError if torchrun started another number of processes or this machine has no GPU.
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
        return workers.results(inf if timeout is None else time.monotonic() + timeout)


def served_store() -> TCPStore:
    """Returns a rendezvous store on the loopback interface, at a port that the system chooses.

    The socket is bound in this function, so no other process can take the port. (If torch bound it,
    the store would listen on all interfaces, without authentication.)
    """
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
    """A context with the processes of one launch; those that still run at its end are ended."""

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
        """Starts the processes, each of which calls ``function(*args)``.

        Raises LaunchError if a process cannot be started.
        """
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
            except OSError as error:  # too many open files, or a TMPDIR too long for sockets
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

    def results(self, until: float) -> dict[int, Any]:
        """Returns the results of all processes, by global rank.

        Other messages are passed to the listener. ``until``: the time of ``time.monotonic`` at
        which it stops waiting. Raises LaunchError for the earliest failure, or if a result is still
        missing at that time. After a first failure, it waits a moment for others: when a rank dies,
        the ranks that communicate with it often fail first, and only they know what they needed it
        for.
        """
        answers: dict[int, Any] = {}
        failures: list[LaunchError] = []
        while pending := [rank for rank in self._pipes if rank not in answers]:
            ready = self._ready(pending, until)
            if not ready:
                break
            for rank in ready:
                answer = self._answer(rank)
                if not isinstance(answer, Told):
                    answers[rank] = answer
                elif self._listener is not None:
                    self._listener(answer.value)
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
    """Returns the multiprocessing context: that of a fork server on Linux, else that of ``spawn``.

    The fork server has imported torch, which takes seconds, so that each process need not do so. It
    only imports modules: it starts no thread of torch and uses no device.
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
    """Returns the environment variables of process ``rank`` of ``ranks``, as torchrun sets them.

    ``port``: the port of the rendezvous store, which this process serves.
    """
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
