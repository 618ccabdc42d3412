"""Stages as graphs: gradients, losses, buffers and random numbers are bitwise equal to autograd's,
also with recomputation."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional

from pipeloom.ir import InputError
from pipeloom.runtime import StagesAs
from tests.support.models import LENGTH, WIDTH, Block
from tests.support.one_rank import FUSED, SPLIT, Of, Ran, Shift, differing, each, ran, watching_b

X = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
AGAIN = "0F0 1F0 0F1 1F1 1R0 1B0 1W0 0B0 0W0 1R1 1B1 1W1 0B1 0W1"


def run(
    module: nn.Module, order: str = each(FUSED, 2), *, x: Tensor = X, steps: int = 1, **options: Any
) -> Ran:
    """Steps of a copy of the module as last stage."""
    xs = [x] * (1 + order.count("1F1"))
    return ran(order, [Shift(x.shape), copy.deepcopy(module)], xs, steps=steps, **options)


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def tied() -> nn.Module:
    module = nn.Sequential(linear(), nn.GELU(), linear())
    module[2].weight = module[0].weight
    return module


def in_bfloat16(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        out: Tensor = m.inside(x)
    return out


def autocast() -> nn.Module:
    return Of(in_bfloat16, inside=nn.Sequential(linear(), nn.LayerNorm(WIDTH), linear()))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return 2 * x @ weight.T

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return 2 * dy @ weight, 2 * dy.flatten(0, 1).T @ x.flatten(0, 1)


def odd(m: Any, x: Tensor) -> Tensor:
    """Nothing here can be deferred: a custom function, einsum, ``x @ w.T``, slices; calls that
    torch's Python bindings interpret differently."""
    x = Doubled.apply(x, m.weight) * m.constant  # type: ignore[no-untyped-call]
    x = torch.einsum("bsd,edf->bsf", x, m.stack)
    x = x + x @ m.stack[0].T
    x = x[:, [1, 0]] * (1 + functional.mse_loss(x, x.cos()))
    return x.relu_().transpose(0, 1)


def of_odd() -> nn.Module:
    made = Of(odd, weight=(WIDTH, WIDTH), stack=(3, WIDTH, WIDTH))
    made.constant = torch.ones(WIDTH)
    return made


MODELS: dict[str, Callable[[], nn.Module]] = {
    "block": lambda: Block(WIDTH),
    "batch norm": lambda: nn.Sequential(linear(), nn.BatchNorm1d(LENGTH), linear()),
    "tied": tied,
    "autocast": autocast,
    "odd": of_odd,
}
IN_B = {
    "block": {f"norm{i}.{name}" for i in (1, 2) for name in ("weight", "bias")},
    "batch norm": {"1.weight", "1.bias"},
    "autocast": {"inside.1.weight", "inside.1.bias"},
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_graphs_give_what_autograd_gives_bit_by_bit(name: str) -> None:
    module = made(name)
    wanted = run(module).values
    for order in (each(SPLIT, 2), each(FUSED, 2)):
        found = run(module, order, stages_as="aten")
        assert found.pipeline.eager_stages == {}
        assert differing(found.values, wanted) == []
        peak = found.pipeline.peak_memory
        found.pipeline.step([X, X], target=[X, X])
        assert found.pipeline.peak_memory == peak  # nothing is held between steps
    module.zero_grad()
    with watching_b(1) as in_b:
        run(module, each(SPLIT, 2), stages_as="aten")
    assert in_b == IN_B.get(name, set())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["block", "batch norm", "odd"])
def test_what_is_recomputed_trains_alike_and_holds_its_input_until_then(name: str) -> None:
    module = made(name)
    found = run(module, AGAIN, stages_as="aten")
    assert differing(found.values, run(module, each(SPLIT, 2), stages_as="aten").values) == []
    one = run(module, each(SPLIT, 1), stages_as="aten").pipeline.peak_memory
    buffers = sum(buffer.nbytes for buffer in module.buffers())
    assert found.pipeline.peak_memory <= one + X.nbytes + 2 * buffers


@pytest.mark.parametrize(("stages_as", "kind"), [("eager", "BW"), ("aten", "F")])
def test_a_loss_that_changes_what_the_backward_needs_is_refused(
    stages_as: StagesAs, kind: str
) -> None:
    module = nn.Sequential(linear(), nn.Tanh())
    with pytest.raises(InputError, match=rf"stage 1, {kind}: float\d+.* was changed in place"):
        run(module, stages_as=stages_as, loss=lambda y, _: y.mul_(2).sum())
    harmless = {"loss": lambda output, _: output.mul_(2).sin().sum()}
    found = run(nn.Sequential(module[0]), stages_as="aten", **harmless)
    assert differing(found.values, run(nn.Sequential(module[0]), **harmless).values) == []


def test_compiled_graphs_differ_by_rounding_and_are_compiled_once() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.GELU())
    found = run(module, each(SPLIT, 2), stages_as="inductor")
    assert found.pipeline.eager_stages == {}
    assert differing(found.values, run(module).values, 1e-5) == []
    hits, misses = (counters["inductor"][f"fxgraph_cache_{kind}"] for kind in ("hit", "miss"))
    run(module, each(SPLIT, 2), stages_as="inductor")
    assert counters["inductor"]["fxgraph_cache_hit"] > hits
    assert counters["inductor"]["fxgraph_cache_miss"] == misses


def test_memory_is_that_of_what_crosses_the_cuts() -> None:
    ways = ((FUSED, "eager"), (FUSED, "aten"), (SPLIT, "aten"))
    eager, fused, split = (
        run(Block(WIDTH), each(order, 2), stages_as=way).pipeline.peak_memory for order, way in ways
    )
    assert fused <= eager
    assert split <= 1.3 * fused


def test_runs_of_no_graphs_start_without_torch_compile() -> None:
    """Its import takes seconds; torch's optimizers load it when they are constructed."""
    script = "import sys, pipeloom.training; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
