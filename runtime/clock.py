"""When ops start and end: the host's clock on a CPU, events on a GPU, so that nothing waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from .cuda import make_event

Call = Callable[[], None]


class Clock(Protocol):
    """Marks are numbered by the executor: op i starts at mark 2i and ends at mark 2i + 1."""

    def start(self) -> None:
        """Begins a step."""
        ...

    def timed(self, run: Call, first: int) -> Call:
        """``run`` between marks ``first`` and ``first + 1``."""
        ...

    def seconds(self) -> list[float]:
        """The last step's marks, on this process's ``time.perf_counter``."""
        ...


class HostClock:
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


class CudaClock:
    """Events on the current stream; the first one is tied to the host's clock."""

    def __init__(self, marks: int, device: torch.device) -> None:
        self._device = device
        self._events = [make_event(timed=True) for _ in range(marks)]
        self._first = make_event(timed=True)
        self._host = 0.0

    def start(self) -> None:
        torch.cuda.synchronize(self._device)
        self._first.record()
        self._host = time.perf_counter()

    def timed(self, run: Call, first: int) -> Call:
        begin, end = self._events[first : first + 2]

        def timed() -> None:
            begin.record()
            run()
            end.record()

        return timed

    def seconds(self) -> list[float]:
        torch.cuda.synchronize(self._device)
        return [self._host + self._first.elapsed_time(event) / 1e3 for event in self._events]


def make_clock(marks: int, device: torch.device) -> Clock:
    return CudaClock(marks, device) if device.type == "cuda" else HostClock(marks)
