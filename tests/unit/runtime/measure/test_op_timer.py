"""Marks of a GPU's ops, over events that are made up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipeloom.runtime.measure import op_timer as clock
from pipeloom.runtime.measure.op_timer import DeviceClock


class Device:
    """A device whose clock stands at ``milliseconds`` when an event is reached."""

    device = torch.device("cuda", 0)
    milliseconds = 5000.0

    def event(self, *, timed: bool) -> Event:
        assert timed
        return Event(self)

    def current(self) -> Device:
        return self

    def synchronize(self) -> None:
        pass


class Event:
    def __init__(self, device: Any) -> None:
        self._device, self.reached = device, 0.0

    def record(self, stream: object = None) -> None:
        self.reached = self._device.milliseconds

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: Event) -> float:
        return later.reached - self.reached


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    device = Device()
    monkeypatch.setattr(clock, "_ANCHORS", clock._Anchors())
    return device


def _spend(device: Any, milliseconds: float) -> None:
    device.milliseconds += milliseconds


def test_two_virtual_ranks_have_one_clock(device: Any) -> None:
    first, second = DeviceClock(2, device), DeviceClock(2, device)
    for rank in (first, second):
        rank.start()
    before = time.perf_counter()
    for rank in (first, second):
        rank.timed(lambda: _spend(device, 3.0), 0)()
    begin, end = first.seconds()
    assert end - begin == pytest.approx(0.003)
    assert second.seconds()[0] == end  # the second one's op began where the first one's ended
    assert begin <= before


def test_a_new_anchor_is_dated_by_the_old_one(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = DeviceClock(2, device)
    rank.start()
    op = rank.timed(lambda: _spend(device, 1.0), 0)
    op()
    early = rank.seconds()
    monkeypatch.setattr(clock, "RENEWED", 0.0)  # as if many seconds had passed on the host
    _spend(device, 20_000.0)
    rank.start()
    op()
    assert rank.seconds()[0] - early[0] == pytest.approx(20.001)
