"""The split into B and W gives autograd's gradients for all kinds of stages, with products'
gradients in W."""

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

from pipeloom.ir import InputError
from pipeloom.runtime import defer
from tests.support.inside import LinearRule
from tests.support.one_rank import Of, Ran, Shift, by_autograd, differing, late, ran, watching_b

ROUNDS = 3


def products(m: Any, x: Tensor) -> Tensor:
    """Every form of matrix product, on two- and three-dimensional parameters."""
    x = torch.tanh(x @ m.a)
    x = torch.tanh(torch.matmul(x, m.b)) @ m.a.T
    x = torch.tanh(torch.bmm(x, m.experts))
    rows = torch.addmm(m.bias, x.reshape(-1, 6), m.a)
    return torch.mm(rows, m.b).view_as(x) + (m.experts @ x.mT).mT


def views(m: Any, x: Tensor) -> Tensor:
    """Products with parts of parameters: transposed, sliced, experts of a stack."""
    x = torch.tanh(x @ m.square.T + functional.linear(x, m.stack[1]))
    parts = [functional.linear(x, piece) for piece in m.pieces.chunk(3)]
    x = torch.tanh(torch.stack(parts).sum(0)) @ m.stack[torch.tensor(2)].t()
    # repeated elements are left to autograd
    return torch.tanh(x @ m.square[:, 1:4]) @ m.row.expand(3, 6)


def of_views() -> nn.Module:
    return Of(views, square=(6, 6), pieces=(18, 6), stack=(3, 6, 6), row=(1, 6))


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


def grouped(m: Any, x: Tensor) -> Tensor:
    """Grouped products of rows as in transformers' experts, with weights (groups, out, in)."""
    ends = torch.tensor([4, 4, 9], dtype=torch.int32)
    return torch.tanh(torch._grouped_mm(x, m.weight.mT, offs=ends))


def of_groups() -> nn.Module:
    return Of(grouped, weight=(3, 8, 16))


def product(x: Tensor, weight: Tensor) -> Tensor:
    if has_torch_function((x, weight)):
        out: Tensor = handle_torch_function(product, (x, weight), x, weight)
        return out
    return functional.linear(x, weight)


defer(product, lambda x, weight: (LinearRule(weight), x))


def in_bfloat16(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        out: Tensor = m.inside(x)
    assert out.dtype is torch.bfloat16
    return out.float()


def with_autocast() -> nn.Module:
    inside = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 6))
    return Of(in_bfloat16, inside=inside)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2),
        nn.Conv2d(8, 4, (1, 3), dilation=(1, 2), padding="same"),
        nn.Flatten(2),
        nn.Conv1d(4, 5, 2, bias=False),
    )


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6, bias=False))


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))


FLOATS, IMAGES, ROWS = (4, 5, 6), (2, 6, 8, 7), (9, 16)
CASES: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "products": (
        lambda: Of(products, a=(6, 6), b=(6, 6), experts=(4, 6, 6), bias=(6,)),
        {"experts"},
    ),
    "views": (of_views, {"row"}),
    "reentrant": (
        lambda: Checkpointed(reentrant=True),
        {f"blocks.{b}.3.{name}" for b in range(2) for name in ("weight", "bias")},
    ),
    "convolutions": (convolutions, {"1.weight", "1.bias"}),
    "norm": (normed, {"1.weight", "1.bias"}),
    "transformed": (
        lambda: Of(lambda m, x: torch.func.vmap(m.inner)(x), inner=nn.Linear(6, 6)),
        {"inner.weight", "inner.bias"},
    ),
    # a custom product with its own rule
    "own": (lambda: Of(lambda m, x: product(x, m.weight), weight=(6, 6)), set()),
    "groups": (of_groups, set()),
    "autocast": (with_autocast, set()),
}
"""Modules, and those of their parameters whose gradients are computed in B."""
SHAPES = {"convolutions": IMAGES, "groups": ROWS}
FLOAT32 = {"groups": 1e-6, "autocast": 0.01}


def run(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, rounds: int = ROUNDS) -> Ran:
    return ran(late(rounds), [Shift(shape, dtype), module], inputs(shape, dtype, rounds))


def inputs(shape: tuple[int, ...], dtype: torch.dtype, rounds: int = ROUNDS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator, dtype=dtype) for _ in range(rounds)]


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_autograds_and_those_of_products_wait_for_w(case: str) -> None:
    (make, in_b), shape = CASES[case], SHAPES.get(case, FLOATS)
    dtype = torch.float32 if case in FLOAT32 else torch.float64
    modules = []
    for _ in range(2):
        torch.manual_seed(0)
        modules.append(make().to(dtype))
    with watching_b(1) as found_in_b:
        found = run(modules[0], shape, dtype)
    wanted = by_autograd([Shift(shape, dtype), modules[1]], inputs(shape, dtype))
    assert differing(found.values, wanted, FLOAT32.get(case, 1e-13)) == []
    assert found_in_b == in_b
    assert found.pipeline.peak_memory > 0


def test_a_view_is_added_to_a_gradient_of_another_layout() -> None:
    torch.manual_seed(0)
    module, plain = of_views(), of_views()
    plain.load_state_dict(module.state_dict())
    for parameter in module.parameters():
        turned = tuple(reversed(range(parameter.dim())))
        parameter.grad = torch.zeros_like(parameter.permute(turned).contiguous()).permute(turned)
    found = run(module, FLOATS, torch.float32)
    wanted = by_autograd([Shift(FLOATS), plain], inputs(FLOATS, torch.float32))
    assert differing(found.values, wanted, 1e-5) == []


@pytest.mark.parametrize("where", ["parameter", "after it is added", "before", "after"])
def test_what_has_a_hook_is_left_to_autograd_until_that_is_gone(where: str) -> None:
    module, seen = layers(), list[int]()
    weight = module[1].weight
    node = get_gradient_edge(weight).node
    hook = {
        "parameter": weight.register_hook,
        "after it is added": weight.register_post_accumulate_grad_hook,
        "before": node.register_prehook,
        "after": node.register_hook,
    }[where](lambda *_: seen.append(1))
    with watching_b(1) as in_b:
        run(module, FLOATS, torch.float32)
    assert "1.weight" in in_b
    assert len(seen) == ROUNDS
    hook.remove()
    module.zero_grad()
    with watching_b(1) as in_b:
        run(module, FLOATS, torch.float32)
    assert not in_b
    assert len(seen) == ROUNDS


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_runs_each_block_twice_only(reentrant: bool) -> None:
    module, xs = Checkpointed(reentrant), inputs(FLOATS, torch.float32)
    pipeline = run(module, FLOATS, torch.float32).pipeline
    module.calls = 0
    pipeline.step(xs, target=xs)
    assert module.calls == 2 * 2 * ROUNDS


def test_modules_that_delay_their_weight_gradients_are_refused() -> None:
    module = normed()
    module[2].backward_dw = lambda: None  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"stages\[1\]: 2 delays its weight gradients until"):
        run(module, FLOATS, torch.float32)


def test_complex_parameters_are_refused() -> None:
    module = normed()
    module[2].phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(InputError, match=r"stages\[1\]: 2.phase is torch.complex64: expected real"):
        run(module, FLOATS, torch.float32)
