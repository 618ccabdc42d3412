"""What streams of a made-up device do in any order: messages and offloaded memory are what was
computed, no buffer is overwritten before it is read, and nothing reads before the message came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fake_device import Device, Memory, on
from tests.support.made_up_transports import MadeUpNccl, MadeUpStagedGloo, Wire, host_channels

MESSAGES = 6


def computing(memory: Memory, number: int) -> Callable[[], None]:
    def compute() -> None:
        memory.value = number

    return compute


@pytest.mark.parametrize("seed", range(10))
def test_messages_of_nccl_through_one_buffer_on_each_side(seed: int) -> None:
    first, second = devices = [Device(), Device()]
    second.streams = first.streams  # they run in any order with each other
    second.streams.append(second.compute)
    wire = Wire(devices)
    sender, receiver = (MadeUpNccl(rank, devices[rank], wire) for rank in range(2))
    buffer: Any = Memory()
    seen: list[int] = []
    for number in range(MESSAGES):
        message: Any = Memory()
        first.compute.does(computing(message, number))
        sender.send(message, 1)
    with on(second.compute):
        for _ in range(MESSAGES):
            release = receiver.releasing(buffer)
            receiver.recv(buffer, 0).wait()
            second.compute.does(lambda: seen.append(buffer.value))
            release()
    first.run(seed)
    assert seen == [*range(MESSAGES)]


@pytest.mark.parametrize("seed", range(10))
def test_messages_through_the_host_are_copied_once_computed_and_posted_once_copied(
    seed: int,
) -> None:
    device = Device()
    sends = MadeUpStagedGloo(device)
    with on(device.compute):
        for number in range(MESSAGES):
            message: Any = Memory()
            device.compute.does(computing(message, number))
            sends.send(message, 1)
    for _, ready in sends.posted:
        with pytest.raises(AssertionError, match="not reached"):
            ready()
    device.run(seed)
    for _, ready in sends.posted:
        ready()
    assert [place.value for place, _ in sends.posted] == [*range(MESSAGES)]


@pytest.mark.parametrize("seed", range(10))
def test_what_follows_a_wait_sees_that_message_in_a_buffer_used_again(seed: int) -> None:
    """All receives are posted ahead, into one buffer."""
    device = Device()
    buffer: Any = Memory()
    seen: list[int] = []
    receives = MadeUpStagedGloo(device)
    with on(device.compute):
        for handle in [receives.recv(buffer, 0) for _ in range(MESSAGES)]:
            handle.wait()
            device.compute.does(lambda: seen.append(buffer.value))
    assert (buffer.value, seen) == (-1, [])  # the host does not wait for the device
    device.run(seed)
    assert seen == [*range(1, MESSAGES + 1)]


@pytest.mark.parametrize("seed", range(10))
def test_what_comes_back_from_the_host_is_what_went_out(seed: int) -> None:
    """F writes where the one before wrote, once that is out; two go out before the first comes
    back, to memory of the host that both use again."""
    device = Device()
    channels, compute = host_channels(device), device.compute
    active, places, seen = Memory(), [Memory(), Memory()], list[int]()

    def backward(memory: Memory) -> Callable[[], None]:
        return lambda: seen.append(memory.value)

    with on(compute):
        for first in range(0, MESSAGES, 2):
            for i in (first, first + 1):
                compute.does(computing(active, i))
                channels.out([(places[i % 2], active)])()
            for i in (first, first + 1):
                again = Memory()
                channels.back([(again, places[i % 2])])()
                compute.does(backward(again))
    device.run(seed)
    assert seen == [*range(MESSAGES)]
