"""Ranks that sleep run before everything else, on cores that do not halt: the machine counts
less."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PR_SET_TIMERSLACK = 29
PRIORITY = 10
LATENCY_REQUEST = Path("/dev/cpu_dma_latency")


def before_others() -> bool:
    """Real-time scheduling and exact timers for all threads of this process; False if not allowed.

    Threads that are started later inherit both.
    """
    try:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(PRIORITY))
    except (OSError, AttributeError):
        return False
    return True


@contextmanager
def cores_awake() -> Iterator[bool]:
    """A context in which an idle core polls, where that is allowed; gives whether it does.

    A core of a virtual machine that halts is given to somebody else, and comes back late and cold.
    """
    try:
        file = LATENCY_REQUEST.open("wb", buffering=0)
    except OSError:
        file = None
    if file is None:
        yield False
        return
    with file:
        file.write(bytes(4))  # no latency is low enough; holds until it is closed
        yield True
