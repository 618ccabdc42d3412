"""The ledger counts what the backward passes hold, each storage once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from pipeloom.runtime import Ledger
from pipeloom.runtime.executor.offload import Host, OffloadedActivations

ROWS, WIDTH = 8, 16
BYTES = ROWS * WIDTH * 4


def inputs() -> Tensor:
    return torch.randn(ROWS, WIDTH, requires_grad=True)


def test_of_a_tensor_made_of_others_the_memory_inside_counts_and_is_offloaded() -> None:
    """As a DTensor is, without the processes that one needs."""
    ledger = Ledger()
    ledger.start([])
    x = TwoTensor(inputs().detach(), inputs().detach()).requires_grad_()
    with ledger.watching():
        y = x.exp()
    assert ledger.live == 2 * BYTES
    del y
    assert ledger.live == 0
    offloaded = OffloadedActivations(Host(torch.device("cpu")), ledger)
    with offloaded.packing(()):
        y = x.exp()
    offloaded.leave()
    offloaded.gone()
    assert (ledger.live, offloaded.moved) == (0, 2 * BYTES)
    offloaded.load()
    offloaded.back()
    assert ledger.live == 2 * BYTES
    y.sum().backward()
    assert torch.equal(x.grad.a, x.a.exp())
    assert torch.equal(x.grad.b, x.b.exp())
