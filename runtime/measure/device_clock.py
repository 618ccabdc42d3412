"""Start and end of ops on a GPU, by events relative to an anchor; nothing waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..device import Device

RENEWED = 10.0  # seconds; an event's time since the anchor has only seven digits


@dataclass(frozen=True, slots=True)
class _Anchor:
    """An event on a device, and its time on the host's clock."""

    event: torch.Event
    seconds: float

    def dated(self, event: torch.Event) -> float:
        """Returns the time of ``event`` in seconds of the host's clock."""
        milliseconds: float = self.event.elapsed_time(event)
        return self.seconds + milliseconds / 1e3


_NEWEST: dict[torch.device, _Anchor] = {}


def _near(device: Device) -> _Anchor:
    """Returns an anchor at most :data:`RENEWED` old; the host rarely waits, the stream never.

    The time of a new anchor is computed from the old one by the device's clock, so delays of the
    host do not matter.
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
    """Events on the current stream, timed by the device's clock relative to an anchor."""

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
