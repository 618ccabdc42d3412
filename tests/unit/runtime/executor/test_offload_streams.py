"""Offloading on streams of its own, as far as a made-up device can show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import Link, Profile, Program, StageProfile
from pipeloom.runtime import Pipeline
from pipeloom.runtime.executor.offload import DeviceChannels, Host
from tests.support.by_hand import by_hand
from tests.support.fake_device import Device, Memory, on

MICROBATCHES = 6
ORDER = "0F0 0O0 0F1 0O1 0F2 0L0 0B0 0W0 0L1 0B1 0W1 0F3 0O3 0B2 0W2 0L3 0B3 0W3"


class Rank:
    """F writes where the one before wrote, once that is out; two go out before the first comes
    back, to memory of the host that both use again.
    """

    def __init__(self, device: Any) -> None:
        self.stream = device.compute
        self.channels: Any = DeviceChannels(device)
        self.active, self.places = Memory(), [Memory(), Memory()]
        self.seen: list[int] = []

    def step(self) -> None:
        for first in range(0, MICROBATCHES, 2):
            for i in (first, first + 1):
                self.stream.does(self._forward(i))
                self.channels.out([(self.places[i % 2], self.active)])()
            for i in (first, first + 1):
                again = Memory()
                self.channels.back([(again, self.places[i % 2])])()
                self.stream.does(self._backward(again))

    def _forward(self, i: int) -> Callable[[], None]:
        def forward() -> None:
            self.active.value = i

        return forward

    def _backward(self, memory: Memory) -> Callable[[], None]:
        return lambda: self.seen.append(memory.value)


@pytest.mark.parametrize("seed", range(10))
def test_what_comes_back_is_what_went_out_whatever_stream_goes_on_first(seed: int) -> None:
    device = Device()
    rank = Rank(device)
    with on(rank.stream):
        rank.step()
    device.run(seed)
    assert rank.seen == [*range(MICROBATCHES)]


def program() -> Program:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, m_o=0.5),), 1, host_link=Link(0.0, 1.0))
    return compile_schedule(by_hand(ORDER, profile=profile))


def test_the_hosts_memory_is_used_again_from_step_to_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making pinned memory takes long."""
    taken: list[int] = []
    take = Host.take

    def note(host: Host, size: int) -> torch.Tensor:
        place = take(host, size)
        taken.append(place.data_ptr())
        return place

    monkeypatch.setattr(Host, "take", note)
    stage = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.Tanh())
    pipeline = Pipeline(program(), [stage], loss=nn.functional.mse_loss)
    x, y = torch.randn(2, 8, 4)
    steps = []
    for _ in range(3):
        taken.clear()
        pipeline.step(x, target=y)
        steps.append({*taken})
    assert steps[0]
    assert steps[2] == steps[1] <= steps[0]
