"""Calls that a stage's graph does without."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.support.graph_runs import run, same

X = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(1))


class Of(nn.Module):
    """A function of ``x`` and of a vector that is trained."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(8, generator=torch.Generator().manual_seed(2)))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.vector)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, v: (x * v).view(4, 16).view(8, 8),
        lambda x, v: (x * v).transpose(0, 1).reshape(4, 16).view(2, 2, 16),
        lambda x, v: x * v + x.sum((0, 1), keepdim=True).view(8),
        lambda x, v: x * v + (x * v).sum(1, keepdim=True).view(2, 1, 8),
        lambda x, v: x * v + (x * v).sum(1).view(1, 2, 8).sum(0, keepdim=True).view(2, 1, 8),
        lambda x, v: (x * v).sum((0, 1, 2), keepdim=True).view(()),
        lambda x, v: x * (total := v.sum(0, keepdim=True)) + total.view(()),
    ],
)
@pytest.mark.parametrize("split", [True, False])
def test_values_stay_bit_by_bit(function: Callable[[Tensor, Tensor], Tensor], split: bool) -> None:
    module = Of(function)
    eager, graphs = run(module, X), run(module, X, stages_as="aten", split=split)
    assert graphs.refusal is None
    assert same(graphs, eager) == []
