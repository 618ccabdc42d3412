"""Announces the compilation of kernels, for which the first command on a machine waits."""

from __future__ import annotations

import threading

from .failures import say

PATIENCE = 1.0
"""Seconds of compilation after which it is announced."""
LOOKING = 0.1
"""Polling interval, in seconds."""


def announce_compiling() -> None:
    """Compile the kernels if necessary; if that takes long, say so on standard error."""
    from pipeloom.ir.cost.simulator import warm_up

    done = threading.Event()
    watching = threading.Thread(target=_watch, args=(done,), daemon=True)
    watching.start()
    try:
        warm_up()
    finally:
        done.set()
        watching.join()


def _watch(done: threading.Event) -> None:
    from pipeloom.ir.kernels import seconds_compiling

    while not done.wait(LOOKING):
        if seconds_compiling() > PATIENCE:
            say("compiling kernels, once on this machine; a time limit does not count this")
            return
