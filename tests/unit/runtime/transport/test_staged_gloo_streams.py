"""Messages through the host's memory: what is copied is what was computed before, and what is
computed sees what came, whatever stream of a made-up device goes on first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeloom.runtime.transport.gloo import GlooTransport
from pipeloom.runtime.transport.staged_gloo import StagedGlooTransport
from tests.support.fake_device import Device, Memory, on

MESSAGES = 5


class OnMadeUpDevice(StagedGlooTransport):
    """Without a process group: what would be posted is kept, with what is waited for before."""

    def __init__(self, device: Device) -> None:
        self._accelerator: Any = device
        self._copies: Any = device.stream()
        self.posted: list[tuple[Any, Any]] = []

    def _host_memory(self, tensor: Any) -> Any:
        return Memory()

    def _sent_by_thread(self, tensor: Any, peer: int, ready: Any = None, **kept: Any) -> Any:
        self.posted.append((tensor, ready))


@pytest.mark.parametrize("seed", range(10))
def test_a_message_is_copied_once_it_is_computed_and_posted_once_it_is_copied(
    seed: int,
) -> None:
    device = Device()
    compute = device.compute
    sends: Any = OnMadeUpDevice(device)
    with on(compute):
        for number in range(MESSAGES):
            message = Memory()
            compute.does(_forward(message, number))
            sends.send(message, 1)
    for _, ready in sends.posted:
        with pytest.raises(AssertionError, match="not reached"):
            ready()
    device.run(seed)
    for _, ready in sends.posted:
        ready()
    assert [place.value for place, _ in sends.posted] == [*range(MESSAGES)]


def _forward(message: Memory, number: int) -> Callable[[], None]:
    def forward() -> None:
        message.value = number

    return forward


@pytest.mark.parametrize("seed", range(10))
def test_what_is_launched_after_a_wait_sees_that_message_in_a_buffer_used_again(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """All receives are posted ahead, into one buffer."""
    device, buffer, places = Device(), Memory(), list[Memory]()
    compute, seen = device.compute, list[int]()
    monkeypatch.setattr(GlooTransport, "recv", lambda _, place, peer: Arrival(place, len(places)))
    receives: Any = OnMadeUpDevice(device)
    monkeypatch.setattr(receives, "_host_memory", lambda _: places.append(Memory()) or places[-1])
    with on(compute):
        for handle in [receives.recv(buffer, 0) for _ in range(MESSAGES)]:
            handle.wait()
            compute.does(lambda: seen.append(buffer.value))
    assert (buffer.value, seen) == (-1, [])  # the host does not wait for the device
    device.run(seed)
    assert seen == [*range(1, MESSAGES + 1)]


class Arrival:
    """A message that is written into the host's memory until the wait for it ends."""

    def __init__(self, place: Memory, value: int) -> None:
        self._place, self._value = place, value

    def wait(self) -> None:
        self._place.value = self._value
