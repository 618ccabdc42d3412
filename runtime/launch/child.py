"""The code of a launched process: it calls the function, sends the result, and ends.

It ends earlier if its parent process ends.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from pipeloom.ir.child_processes import tied_to_parent

from ..device import set_gpu
from ..transport.making import meet
from ..transport.nccl import CONNECTIONS
from .environment import backend_of, gpu_here, own_gpu
from .failures import Names, failure_of

_PARENT: list[Connection] = []  # in a spawned process, the pipe to its parent


def tell(value: Any) -> None:
    """Sends ``value`` to the listener in the parent process, which started this one."""
    _PARENT[0].send_bytes(pickle.dumps(Told(value)))


@dataclass(frozen=True, slots=True)
class Told:
    """A value that a child process sends to the listener in its parent before its result."""

    value: Any


def call_here(
    function: Callable[..., Any], args: Sequence[Any], device: torch.device, message_timeout: float
) -> Any:
    """Returns ``function(*args)``, called with ``torch.distributed`` initialized.

    If ``torch.distributed`` is not initialized yet, initializes it for tensors on ``device``, and
    ends it after the call. ``message_timeout``: the maximum seconds that a message may take.
    """
    if dist.is_initialized():
        return function(*args)
    if device.type == "cuda":
        os.environ.setdefault(CONNECTIONS, "32")  # the maximum: NCCL uses two streams per channel
        set_gpu(own_gpu())
    meet(gpu_here(device), backend_of, message_timeout)
    result = function(*args)
    dist.destroy_process_group()  # not after an error: it would wait for the other processes
    # end Gloo's threads: if one releases a tensor while the interpreter shuts down, the process
    # aborts
    gc.collect()
    return result


def run_child(
    pipe: Connection, environment: dict[str, str], names: Names, call: tuple[Any, ...]
) -> None:
    """Runs a launched process: sends the result of the call, or its failure, through ``pipe``.

    ``environment``: the environment variables to set. ``names``: the names of all processes in
    error messages. ``call``: the arguments of :func:`call_here`.
    """
    _PARENT.append(pipe)
    _tie_to_parent()
    threading.Thread(target=_watch, args=(pipe,), daemon=True).start()
    os.environ.update(environment)
    # set the number of threads: torch was loaded before this process had its environment
    asked = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    share = max(1, cores // int(environment["WORLD_SIZE"]))
    torch.set_num_threads(int(asked) if asked.isdigit() and int(asked) > 0 else share)
    try:
        answer = pickle.dumps(call_here(*call))
    except BaseException as error:
        pipe.send_bytes(pickle.dumps(failure_of(int(environment["RANK"]), names, error)))
        os._exit(1)  # immediately: destroying a broken process group can hang
    pipe.send_bytes(answer)


def _tie_to_parent() -> None:
    """Makes the fork server and all of its children end when the process that started it ends.

    This works even if children are still running or are stopped (by a signal).
    """
    server: Any = forkserver._forkserver
    alive = getattr(server, "_forkserver_alive_fd", None)
    if alive is not None and (tie := tied_to_parent()) is not None:
        server._forkserver_alive_fd = None
        os.close(alive)
        tie()


def _watch(pipe: Connection) -> None:
    """Ends this process as soon as ``pipe`` closes, which means that the parent has ended."""
    with suppress(EOFError, OSError):
        pipe.recv_bytes()
    os._exit(1)
