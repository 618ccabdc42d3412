"""What forwards change is as before after a trial, an evaluation, or a step run again."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeloom.runtime.tensors.forward_state import undisturbed


class Noise(nn.Module):
    """Draws from torch's generator and from its own, and counts."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self) -> Tensor:
        self.count += 1
        return torch.stack([self.count, torch.rand(()), torch.rand((), generator=self.generator)])


def test_all_numbers_are_drawn_once_more() -> None:
    module = nn.Sequential(Noise())
    torch.manual_seed(0)
    with undisturbed([module], []):
        first = module[0]()
    assert torch.equal(module[0](), first)
