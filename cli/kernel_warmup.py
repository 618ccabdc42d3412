"""Tells the user of a first command on a machine why it waits: kernels are compiled then."""

from __future__ import annotations

import threading

from .failures import say

PATIENCE = 1.0
"""Seconds of compiling before it is announced."""
LOOKING = 0.1
"""Seconds between two looks at how long kernels have been compiled."""


def announce_compiling() -> None:
    """Has kernels ready. Says on standard error that they are compiled, where that takes long."""
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
