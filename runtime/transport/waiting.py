"""Whether a thread waits for another rank, by where it is."""

from __future__ import annotations

import sys

_WAITS = (__package__, "torch.distributed.distributed_c10d")
"""Modules whose calls block until another rank has done its part."""


def waits_for_another(thread: int | None) -> bool:
    """Whether the thread of this number is within a call of a transport, or a collective."""
    frame = sys._current_frames().get(thread or 0)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(_WAITS):
            return True
        frame = frame.f_back
    return False
