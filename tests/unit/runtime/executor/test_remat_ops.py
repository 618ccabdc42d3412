"""Recomputing and offloading on one rank: random numbers, shared storages, and what is held
when."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import Link, Profile, Program, StageProfile
from pipeloom.runtime import Pipeline
from tests.support.by_hand import by_hand

PLAIN = "0F0 1F0 0F1 1F1 1B0 1W0 0B0 0W0 1B1 1W1 0B1 0W1"
RECOMPUTED = "0F0 1F0 0F1 1F1 1R0 1B0 1W0 0R0 0B0 0W0 1R1 1B1 1W1 0R1 0B1 0W1"
OFFLOADED = "0F0 1F0 0O0 1O0 0F1 1F1 1O1 1L0 1B0 1W0 0L0 0B0 0W0 1L1 1B1 1W1 0B1 0W1"
MIXED = "0F0 1F0 0O0 0F1 1F1 1R0 1B0 1W0 0L0 0B0 0W0 1B1 1W1 0R1 0B1 0W1"


class Stage(nn.Module):
    """Views, an output that is saved and sent on, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 12), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x).chunk(2, -1)
        mixed = nn.functional.dropout(a * torch.sigmoid(b.transpose(0, 1)).transpose(0, 1), 0.5)
        return torch.tanh(self.second(mixed))


def program(order: str) -> Program:
    """Two stages on one rank, which can be recomputed and offloaded."""
    stage = StageProfile(1.0, 1.0, 1.0, t_r=1.0, m_r=0.5, m_o=0.5)
    profile = Profile((stage,) * 2, 1, host_link=Link(0.0, 1.0))
    return compile_schedule(by_hand(order, profile=profile))


def trained(
    order: str, *, memory: bool = True, made: Callable[[], nn.Module] = Stage
) -> tuple[list[Tensor], list[Tensor], Pipeline]:
    """Gradients after two steps, which add up, the last losses, and the pipeline."""
    torch.manual_seed(0)
    modules = [made(), made()]
    pipeline = Pipeline(program(order), modules, loss=nn.functional.mse_loss, memory=memory)
    x, y = torch.randn(2, 2, 6, 4)
    losses: list[Tensor] = []
    for _ in range(2):
        pipeline.step(x, target=y, losses=losses)
    gradients = [p.grad for m in modules for p in m.parameters() if p.grad is not None]
    return gradients, losses, pipeline


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("order", [RECOMPUTED, OFFLOADED, MIXED])
def test_gradients_are_bit_for_bit_those_without_levers(order: str, memory: bool) -> None:
    expected, expected_losses, plain = trained(PLAIN)
    found, losses, pipeline = trained(order, memory=memory)
    assert len(found) == len(expected) == 8
    assert all(map(torch.equal, found, expected))
    assert all(map(torch.equal, losses, expected_losses))
    if memory:
        gc.collect()
        assert pipeline.peak_memory < plain.peak_memory


@pytest.mark.parametrize("order", [PLAIN, RECOMPUTED, OFFLOADED, MIXED])
def test_nothing_is_held_after_a_step(order: str) -> None:
    _, _, pipeline = trained(order)
    assert pipeline._memory.live == 0
