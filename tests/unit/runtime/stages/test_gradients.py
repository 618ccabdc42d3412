"""Gradients of stages that are sent: rounded once, when they are sent; and missing ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.support.inside import GradientAccumulator


def values(tensors: list[Tensor]) -> set[float]:
    return {value for tensor in tensors for value in tensor.flatten().tolist()}


@pytest.mark.parametrize("owned", [True, False])
def test_what_is_too_small_for_the_sent_dtype_adds_up_until_it_leaves(owned: bool) -> None:
    """On their own rank they are not rounded."""
    module = nn.Linear(3, 5, dtype=torch.float64)
    parameters, cpu = list(module.parameters()), torch.device("cpu")
    found = GradientAccumulator(parameters, cpu, torch.bfloat16, owned=owned)
    received = found.message.empty(cpu)
    for part in found.message.tensors(received):
        part.fill_(1.0)
    small = 2.0**-20 if owned else 2.0**-9  # each is too small to change 1 in bfloat16
    found.begin()
    for _ in range(8):
        (small * sum(p.sum() for p in module.parameters())).backward()  # type: ignore[union-attr]
    if owned:
        found.come_home(received)
        sent = [p.grad for p in module.parameters() if p.grad is not None]
    else:
        sent = list(found.message.tensors(found.leave(received)))
    assert values(sent) == {1.0 + 8 * small}
