"""Whether the first use on a machine will keep its user waiting: kernels are compiled then."""

from __future__ import annotations

import threading

from .failures import say

PATIENCE = 2.5
"""Seconds. Reading kernels that were compiled before takes a tenth of it, compiling them more."""


def announce_compiling() -> None:
    """Says on standard error that kernels are compiled, where that takes long."""
    from pipeloom.ir.cost.simulator import warm_up

    waiting = threading.Timer(PATIENCE, _announce)
    waiting.daemon = True
    waiting.start()
    try:
        warm_up()
    finally:
        waiting.cancel()
        waiting.join()


def _announce() -> None:
    say("compiling kernels, once on this machine; a time limit does not count this")
