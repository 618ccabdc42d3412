"""Start and end of ops: the host's clock on a CPU; events on a GPU (:mod:`.device_clock`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import torch

from ..device import Device
from .device_clock import DeviceClock

Call = Callable[[], None]


class HostClock:
    """Times by ``time.perf_counter``, on a CPU.

    Op i starts at mark 2i and ends at mark 2i + 1; ``timed`` returns the call that sets both.
    ``seconds`` returns the last step's marks, by this process's ``time.perf_counter``.
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
    """Returns the clock of a device, for ``marks`` times per step."""
    own = Device(device)
    return HostClock(marks) if own.is_host else DeviceClock(marks, own)
