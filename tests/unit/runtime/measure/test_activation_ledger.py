"""The ledger counts what the backward passes hold, each storage once."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from pipeloom.runtime import Ledger
from pipeloom.runtime.executor.offload import Host, OffloadedActivations
from pipeloom.runtime.executor.weight_grad_deferral import Deferral, WeightQueue

ROWS, WIDTH = 8, 16
BYTES = ROWS * WIDTH * 4


def inputs() -> Tensor:
    return torch.randn(ROWS, WIDTH, requires_grad=True)


def test_saved_tensors_count_until_their_graph_lets_go() -> None:
    ledger, x = Ledger(), inputs()
    ledger.start([])
    with ledger.watching():
        y = torch.sigmoid(torch.tanh(x))  # each saves its own output
    assert ledger.live == 2 * BYTES
    y.sum().backward()
    assert (ledger.live, ledger.peak) == (0, 2 * BYTES)


def test_a_shared_storage_counts_once_and_parameters_not_at_all() -> None:
    ledger, x = Ledger(), inputs()
    layer = nn.Linear(WIDTH, WIDTH)
    ledger.start([layer])
    with ledger.watching():
        y = layer(x) + layer(x.view(ROWS, WIDTH)) + (x * x)
    assert ledger.live == BYTES
    del y
    assert ledger.live == 0


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


def test_a_received_buffer_counts_from_its_receive_to_its_free() -> None:
    ledger, buffer = Ledger(), torch.empty(ROWS, WIDTH)
    ledger.start([])
    hold, release = ledger.turns(buffer)
    hold()
    with ledger.watching():
        y = buffer.requires_grad_() ** 2
    assert ledger.live == BYTES
    del y
    assert ledger.live == BYTES
    release()
    assert ledger.live == 0


def test_a_graph_dropped_before_its_b_goes_though_ops_saved_their_own_outputs() -> None:
    ledger, model = Ledger(), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Softmax(-1))
    ledger.start([model])
    with ledger.watching():
        y = model(inputs())
    assert ledger.live == 3 * BYTES
    del y
    assert ledger.live == 0


def test_what_waits_for_w_stays_after_b() -> None:
    """Two linear layers with a tanh: F saves x and tanh's output; after B each has its dy, too."""
    ledger, x = Ledger(), inputs()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    mode, queue = Deferral(model.parameters()), WeightQueue(ledger)
    ledger.start([model])
    with ledger.watching(), mode.into(queue):
        y = model(x)
    assert ledger.live == 2 * BYTES
    y.backward(torch.randn(ROWS, WIDTH))
    assert ledger.live == 4 * BYTES
    queue.run()
    assert ledger.live == 0


def test_a_new_start_forgets_the_old_peak() -> None:
    ledger = Ledger()
    ledger.hold(torch.empty(4))
    ledger.start([])
    assert ledger.peak == ledger.live == 16
    big = torch.empty(1000)
    ledger.release(ledger.hold(big))
    assert ledger.peak == 4016
    ledger.start([])
    assert ledger.peak == 16
