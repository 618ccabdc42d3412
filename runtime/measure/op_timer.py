"""Clocks that record start and end of ops: by the host's clock, or by events on a GPU.

For GPUs, see :mod:`.device_clock`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import torch

from ..device import Device
from .device_clock import DeviceClock

Call = Callable[[], None]


class HostClock:
    """Records the times of ops by ``time.perf_counter``, on a CPU.

    ``marks``: the number of recorded times. Op i starts at mark 2i and ends at mark 2i + 1.
    ``start()`` begins a step. ``timed(run, first)`` returns a function that calls ``run`` and sets
    the marks ``first`` and ``first + 1`` to its start and end. ``seconds()`` returns all marks of
    the last step.
    """

    def __init__(self, marks: int) -> None:
        self._marks = [0.0] * marks

    def start(self) -> None:
        pass

    def timed(self, run: Call, first: int) -> Call:
        marks, now = self._marks, time.perf_counter

        def timed() -> None:
            marks[first] = now()
            run()
            marks[first + 1] = now()

        return timed

    def seconds(self) -> list[float]:
        return list(self._marks)


Clock: TypeAlias = HostClock | DeviceClock


def make_clock(marks: int, device: torch.device) -> Clock:
    """Returns a clock that records ``marks`` times per step on ``device``."""
    own = Device(device)
    return HostClock(marks) if own.is_host else DeviceClock(marks, own)
