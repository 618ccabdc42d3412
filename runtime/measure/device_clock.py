"""A clock that records start and end of ops on a GPU by events, without waiting for the GPU.

An event's time is measured relative to an earlier one, the *anchor*, whose time on the host's clock
is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..device import Device

RENEWED = 10.0  # age in seconds at which an anchor is replaced, as elapsed_time has only 7 digits


@dataclass(frozen=True, slots=True)
class _Anchor:
    """An event on a device, and its time on the host's clock."""

    event: torch.Event
    seconds: float

    def dated(self, event: torch.Event) -> float:
        """Returns the time of ``event`` in seconds of the host's ``time.perf_counter``."""
        milliseconds: float = self.event.elapsed_time(event)
        return self.seconds + milliseconds / 1e3


_NEWEST: dict[torch.device, _Anchor] = {}


def _near(device: Device) -> _Anchor:
    """Returns an anchor of ``device`` that is at most :data:`RENEWED` seconds old.

    If it creates a new one, the host waits for the device. The time of the new anchor is computed
    from that of the old one by the device's clock, so delays of the host do not matter.
    """
    old = _NEWEST.get(device.device)
    if old is not None and time.perf_counter() - old.seconds < RENEWED:
        return old
    event = device.event(timed=True)
    event.record(device.current())
    event.synchronize()
    now = time.perf_counter() if old is None else old.dated(event)
    _NEWEST[device.device] = found = _Anchor(event, now)
    return found


class DeviceClock:
    """Records the times of ops by events on the GPU's current stream.

    Methods and results are those of :class:`~.op_timer.HostClock`: times are seconds of
    ``time.perf_counter``, too. ``seconds()`` waits for the stream.
    """

    def __init__(self, marks: int, device: Device) -> None:
        self._device = device
        self._events = [device.event(timed=True) for _ in range(marks)]
        self._anchor: _Anchor | None = None

    def start(self) -> None:
        self._anchor = _near(self._device)

    def timed(self, run: Callable[[], None], first: int) -> Callable[[], None]:
        begin, end = self._events[first : first + 2]

        def timed() -> None:
            begin.record()
            run()
            end.record()

        return timed

    def seconds(self) -> list[float]:
        assert self._anchor is not None
        self._device.current().synchronize()
        return [self._anchor.dated(event) for event in self._events]
