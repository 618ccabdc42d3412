"""Gradients that are sent in a dtype of their own are rounded once, as they leave."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeloom.runtime.stages.flat_parameters import Layout
from pipeloom.runtime.stages.gradient_accumulator import GradientAccumulator


def collecting(departures: int) -> tuple[nn.Linear, Layout, GradientAccumulator]:
    module = nn.Linear(3, 5, dtype=torch.float64)
    layout = Layout(list(module.parameters()), torch.float64)
    found = GradientAccumulator(layout, torch.device("cpu"), departures, torch.bfloat16)
    found.begin()
    found.ready()
    return module, layout, found


def add(module: nn.Linear, factor: float) -> None:
    """Adds ``factor`` to every element of the gradients."""
    (factor * sum(p.sum() for p in module.parameters())).backward()  # type: ignore[union-attr]


def values(tensors: list[Tensor]) -> set[float]:
    return {value for tensor in tensors for value in tensor.flatten().tolist()}


def test_what_is_too_small_for_the_sent_dtype_adds_up_until_it_leaves() -> None:
    module, layout, collector = collecting(1)
    received = torch.full((layout.size,), 1.0, dtype=torch.bfloat16)
    collector.arrive(received)
    for _ in range(8):  # each too small to change a bfloat16 of 1
        collector.ready()
        add(module, 2.0**-9)
    assert values(layout.views(collector.leave(received))) == {1.0 + 2.0**-6}


def test_at_home_nothing_is_rounded() -> None:
    module, layout, collector = collecting(0)
    add(module, 2.0**-20)
    collector.come_home(torch.full((layout.size,), 1.0, dtype=torch.bfloat16))
    assert values([p.grad for p in module.parameters() if p.grad is not None]) == {1.0 + 2.0**-20}
