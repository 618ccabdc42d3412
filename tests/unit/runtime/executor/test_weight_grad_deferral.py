"""The B/W split gives autograd's gradients, whatever the stage is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils.checkpoint import checkpoint

from pipeloom.runtime import Ledger
from pipeloom.runtime.executor.deferred_ops import Linear, defer
from pipeloom.runtime.executor.weight_grad_deferral import Deferral, WeightQueue, run_backward
from tests.support.models import worst

ROUNDS = 3


class Products(nn.Module):
    """Every form of matrix product, on two- and three-dimensional parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6, 6))
        self.experts = nn.Parameter(torch.randn(4, 6, 6))
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x @ self.a)
        x = torch.tanh(torch.matmul(x, self.b)) @ self.a.T
        x = torch.tanh(torch.bmm(x, self.experts))
        rows = torch.addmm(self.bias, x.reshape(-1, 6), self.a)
        return torch.mm(rows, self.b).view_as(x) + (self.experts @ x.mT).mT


class Views(nn.Module):
    """Products with parts of parameters: transposed, in pieces, experts of a stack."""

    def __init__(self) -> None:
        super().__init__()
        self.square, self.pieces = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(18, 6))
        self.stack = nn.Parameter(torch.randn(3, 6, 6))
        self.row = nn.Parameter(torch.randn(1, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x @ self.square.T + functional.linear(x, self.stack[1]))
        parts = [functional.linear(x, piece) for piece in self.pieces.chunk(3)]
        x = torch.tanh(sum(parts)) @ self.stack[torch.tensor(2)].t()
        # an element that is there twice is autograd's
        return torch.tanh(x @ self.square[:, 1:4]) @ self.row.expand(3, 6)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6), nn.LayerNorm(6))
            for _ in range(2)
        )
        self.reentrant = reentrant
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(self.run, block, x, use_reentrant=self.reentrant)
        return x

    def run(self, block: nn.Module, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = block(x)
        return out


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2),
        nn.Conv2d(8, 4, (1, 3), dilation=(1, 2), padding="same"),
        nn.Flatten(2),
        nn.Conv1d(4, 5, 2, bias=False),
    )


def floats() -> Tensor:
    return torch.randn(4, 5, 6).requires_grad_()


def images() -> Tensor:
    return torch.randn(2, 6, 8, 7).requires_grad_()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "products": (Products, floats),
    "views": (Views, floats),
    "reentrant": (lambda: Checkpointed(reentrant=True), floats),
    "convolutions": (convolutions, images),
}


def gradients(model: nn.Module, xs: list[Tensor]) -> dict[str, Any]:
    grads = {name: p.grad for name, p in model.named_parameters()}
    grads |= {f"x{i}": x.grad for i, x in enumerate(xs)}
    for tensor in (*model.parameters(), *xs):
        tensor.grad = None
    return grads


def run_split(model: nn.Module, xs: list[Tensor]) -> tuple[Ledger, list[WeightQueue]]:
    """All forwards, then all B, then all W: the longest that weight gradients can wait."""
    mode, ledger = Deferral(model.parameters()), Ledger()
    ledger.start([model])
    queues = [WeightQueue(ledger) for _ in xs]
    outputs = []
    for queue, x in zip(queues, xs, strict=True):
        with mode.into(queue), ledger.watching():
            outputs.append(get_gradient_edge(model(x).pow(2).mean()))
    for queue in queues:
        with mode.into(queue):
            one = torch.ones((), dtype=next(model.parameters()).dtype)
            run_backward((outputs.pop(0),), (one,))
    for queue in queues:
        queue.run()
    return ledger, queues


@pytest.mark.parametrize("case", CASES)
def test_split_gradients_are_autograds(case: str) -> None:
    torch.manual_seed(0)
    make_model, make_input = CASES[case]
    model = make_model().double()
    xs = [make_input() for _ in range(ROUNDS)]
    xs = [x.detach().double().requires_grad_() for x in xs]
    for x in xs:
        model(x).pow(2).mean().backward()
    expected = gradients(model, xs)
    ledger, _ = run_split(model, xs)
    for name, grad in gradients(model, xs).items():
        want = expected[name]
        if want is None or grad is None:
            assert grad is want, name
        else:
            assert (grad - want).abs().max() <= 1e-13 * want.abs().max(), name
    assert ledger.live == 0
    assert ledger.peak > 0


def waiting(model: nn.Module, x: Tensor) -> tuple[set[str], WeightQueue]:
    """The parameters that have no gradient between B and W, and their queue."""
    mode, queue = Deferral(model.parameters()), WeightQueue(Ledger())
    with mode.into(queue):
        model(x).sum().backward()
    return {name for name, p in model.named_parameters() if p.grad is None}, queue


def test_b_leaves_weights_and_biases_of_products_to_w() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6, bias=False))
    names, queue = waiting(model, floats())
    assert names == {"0.weight", "0.bias", "2.weight"}
    assert len(queue) == 2
    queue.run()
    assert len(queue) == 0
    assert all(p.grad is not None for p in model.parameters())


def test_b_leaves_products_with_views_of_parameters_to_w() -> None:
    names, queue = waiting(Views(), floats())
    assert names == {"square", "pieces", "stack"}
    assert len(queue) == 7


def test_rows_by_groups_are_left_to_w_bit_for_bit() -> None:
    """As the experts of transformers compute them, of weights (groups, out, in)."""
    torch.manual_seed(0)
    model, x = Grouped(), torch.randn(9, 16)
    names, queue = waiting(model, x)
    assert names == {"weight"}
    queue.run()
    found = gradients(model, [])["weight"]
    model(x).sum().backward()
    assert torch.equal(found, gradients(model, [])["weight"])


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 16))

    def forward(self, x: Tensor) -> Tensor:
        ends = torch.tensor([4, 4, 9], dtype=torch.int32)
        return torch.tanh(torch._grouped_mm(x, self.weight.mT, offs=ends))


def test_a_view_is_added_to_a_gradient_of_another_layout() -> None:
    torch.manual_seed(0)
    model, x = Views(), floats()
    names, queue = waiting(model, x)
    for name in names:
        parameter = model.get_parameter(name)
        turned = tuple(reversed(range(parameter.dim())))
        parameter.grad = torch.zeros_like(parameter.permute(turned).contiguous()).permute(turned)
    queue.run()
    found = gradients(model, [])
    model(x).sum().backward()
    for name in names:
        torch.testing.assert_close(found[name], model.get_parameter(name).grad)


def test_a_parameter_with_a_gradient_hook_is_left_to_autograd() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    seen: list[int] = []
    model[0].weight.register_hook(lambda grad: seen.append(0))
    model[1].bias.register_post_accumulate_grad_hook(lambda p: seen.append(1))
    names, _ = waiting(model, floats())
    assert names == set()
    assert sorted(seen) == [0, 1]


@pytest.mark.parametrize("before", [True, False])
def test_so_is_one_with_a_hook_where_autograd_accumulates(before: bool) -> None:
    """As wrappers that reduce gradients have them; once it is gone the product is put off again."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    node, seen = get_gradient_edge(model[1].weight).node, [0]

    def count(*_: object) -> None:
        seen[0] += 1

    hook = node.register_prehook(count) if before else node.register_hook(count)
    names, _ = waiting(model, floats())
    assert names == {"0.weight", "0.bias"}
    assert seen == [1]
    hook.remove()
    model.zero_grad()
    assert waiting(model, floats())[0] == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert seen == [1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_runs_each_block_twice_only(reentrant: bool) -> None:
    model = Checkpointed(reentrant)
    run_split(model, [floats() for _ in range(ROUNDS)])
    assert model.calls == 2 * 2 * ROUNDS


def test_under_autocast_products_run_low_and_gradients_stay_in_the_parameters_dtype() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    xs = [torch.randn(32, 64).requires_grad_() for _ in range(ROUNDS)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [model(x).float().pow(2).mean() for x in xs]
    for loss in losses:
        loss.backward()
    expected = gradients(model, xs)
    mode, queue = Deferral(model.parameters()), WeightQueue(Ledger())
    with mode.into(queue):
        for x in xs:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
            assert out.dtype is torch.bfloat16
            out.float().pow(2).mean().backward()
    queue.run()
    found = gradients(model, xs)
    assert {name: (x.dtype, x.shape) for name, x in found.items()} == {
        name: (x.dtype, x.shape) for name, x in expected.items()
    }
    assert worst(found, expected) <= 0.01


def test_w_of_a_convolution_needs_no_weights() -> None:
    """Where weights are sent they are elsewhere by then."""
    torch.manual_seed(0)
    model, x = nn.Conv1d(6, 6, 4, groups=6), torch.randn(2, 6, 8, requires_grad=True)
    model(x).sum().backward()
    expected = gradients(model, [x])
    _, queue = waiting(model, x)
    for parameter in model.parameters():
        parameter.untyped_storage().resize_(0)
    queue.run()
    for name, grad in gradients(model, [x]).items():
        assert torch.equal(grad, expected[name]), name


def test_what_runs_within_a_function_transform_is_left_to_autograd() -> None:
    torch.manual_seed(0)
    model, x = ByRow(), floats()
    model(x).pow(2).mean().backward()
    expected = gradients(model, [x])
    run_split(model, [x])
    for name, grad in gradients(model, [x]).items():
        assert torch.equal(grad, expected[name]), name


class ByRow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = torch.func.vmap(self.inner)(x)
        return rows


def test_a_product_of_ones_own_is_deferred_once_it_has_a_rule() -> None:
    model = nn.Sequential(Own(), nn.Linear(6, 6))
    x = floats()
    names, queue = waiting(model, x)
    assert names == {"0.weight", "1.weight", "1.bias"}
    queue.run()
    found = gradients(model, [])
    model(x).sum().backward()
    assert worst(found, gradients(model, [])) <= 1e-5


def own(x: Tensor, weight: Tensor) -> Tensor:
    if has_torch_function((x, weight)):
        out: Tensor = handle_torch_function(own, (x, weight), x, weight)
        return out
    return functional.linear(x, weight)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return own(x, self.weight)


defer(own, lambda x, weight: (Linear(weight), x))
