"""Stages as graphs: the same gradients, losses, buffers and random numbers as autograd, bit by
bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from pipeloom.ir import InputError
from pipeloom.runtime import Memory, StagesAs
from pipeloom.runtime.graphs.accumulation import AddGradient
from pipeloom.runtime.graphs.graph_runner import GraphRunner
from tests.support.graph_runs import furthest, run, same, square
from tests.support.models import LENGTH, WIDTH, Block

X = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def tied() -> nn.Module:
    module = nn.Sequential(linear(), nn.GELU(), linear())
    module[2].weight = module[0].weight
    return module


class Lora(nn.Module):
    """A frozen product and a trained one of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base = linear().requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(WIDTH, 2)), nn.Parameter(torch.randn(2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + x @ self.a @ self.b
        return out


class InBfloat16(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(linear(), nn.LayerNorm(WIDTH), linear())

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = self.inside(x)
        return out


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return 2 * x @ weight.T

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return 2 * dy @ weight, 2 * dy.flatten(0, 1).T @ x.flatten(0, 1)


class Odd(nn.Module):
    """What interception defers nothing of: a function of one's own, einsum, ``x @ w.T``, slices."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.stack = nn.Parameter(torch.randn(3, WIDTH, WIDTH))
        self.constant = torch.ones(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = Doubled.apply(x, self.weight) * self.constant  # type: ignore[no-untyped-call]
        x = torch.einsum("bsd,edf->bsf", x, self.stack)
        x = x + x @ self.stack[0].T
        return x.relu_().transpose(0, 1)


class DenseExperts(nn.Module):
    """Each token goes through all experts, weighted by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = linear()
        self.experts = nn.Parameter(0.2 * torch.randn(WIDTH, WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1).expand(WIDTH, -1, -1)
        done = torch.bmm(tokens, self.experts)
        share = self.gate(x).softmax(-1).flatten(0, 1).T
        return (done * share[..., None]).sum(0).view_as(x)


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "block": (lambda: Block(WIDTH), X),
    "batch norm": (lambda: nn.Sequential(linear(), nn.BatchNorm1d(LENGTH), linear()), X),
    "convolution": (lambda: nn.Sequential(nn.Conv1d(LENGTH, LENGTH, 3, padding=1), linear()), X),
    "tied": (tied, X),
    "low rank": (Lora, X),
    "autocast": (InBfloat16, X),
    "odd": (Odd, X),
    "dense experts": (DenseExperts, X),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(linear()), X),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "split"),
    [(name, True) for name in MODELS] + [(name, False) for name in ("block", "batch norm", "odd")],
)
def test_graphs_give_what_autograd_gives_bit_by_bit(name: str, split: bool) -> None:
    make, given = MODELS[name]
    torch.manual_seed(0)
    module = make()
    wanted, found = run(module, given), run(module, given, stages_as="aten", split=split)
    assert found.refusal is None
    assert same(found, wanted) == []
    assert found.live == 0


def test_all_but_the_norms_gradients_come_with_w() -> None:
    covered = {
        name: run(make(), given, stages_as="aten", split=True).in_b
        for name, (make, given) in MODELS.items()
        if name in ("odd", "dense experts", "convolution", "tied", "low rank", "weight norm")
    }
    assert covered == dict.fromkeys(covered, 0.0)
    norms = 4 * WIDTH / sum(p.numel() for p in Block(WIDTH).parameters())
    assert run(Block(WIDTH), X, stages_as="aten", split=True).in_b == pytest.approx(norms)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = linear()

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.inside(x)  # type: ignore[no-any-return]
        return -self.inside(x)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.calls = linear(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.inside(x)  # type: ignore[no-any-return]


class Replacing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = linear()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + x.detach().mean((0, 1))
        return self.inside(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Branching, "depends on values in tensors .* at test_graph_runner.py:.*: if x.sum"),
        (Counting, "sets the attribute calls"),
        (Replacing, "in the place of buffer mean"),
    ],
)
def test_what_cannot_be_a_graph_runs_as_it_is_and_says_why(
    make: Callable[[], nn.Module], why: str
) -> None:
    module = make()
    wanted, found = run(module, X), run(module, X, stages_as="aten")
    assert same(found, wanted) == []
    assert re.search(why, found.refusal or "")


def test_a_parameter_with_a_hook_is_left_to_autograd() -> None:
    module = nn.Sequential(linear())
    module[0].weight.register_hook(lambda gradient: 2 * gradient)
    runner = GraphRunner(1, module, memory=Memory(), last=True, loss=square, seed=torch.tensor(1.0))
    assert runner.refusal == "0.weight has a hook on its gradient"


@pytest.mark.parametrize(("stages_as", "kind"), [("eager", "BW"), ("aten", "F")])
def test_a_loss_that_changes_what_the_backward_needs_is_refused(
    stages_as: StagesAs, kind: str
) -> None:
    module = nn.Sequential(linear(), nn.Tanh())
    with pytest.raises(InputError, match=rf"^stage 1, {kind}: float\d+.* was changed in place"):
        run(module, X, stages_as=stages_as, loss=lambda y, _: y.mul_(2).sum())


def test_a_loss_may_change_in_place_what_no_backward_needs() -> None:
    module, loss = nn.Sequential(linear()), lambda output, _: output.mul_(2).sin().sum()
    assert same(run(module, X, stages_as="aten", loss=loss), run(module, X, loss=loss)) == []


def test_compiled_graphs_differ_by_rounding() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(linear(), nn.GELU())
    wanted, found = run(module, X), run(module, X, stages_as="inductor")
    assert found.refusal is None
    assert furthest(found, wanted) <= 1e-5
    before = counters["inductor"]["fxgraph_cache_hit"]
    run(module, X, stages_as="inductor")
    assert counters["inductor"]["fxgraph_cache_hit"] == before + 2  # F and BW are made once


def test_compiled_weight_gradients_are_added_within_their_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sums: list[torch.Size] = []
    add = AddGradient.__call__
    monkeypatch.setattr(
        AddGradient, "__call__", lambda self, x: (sums.append(x.shape), add(self, x))
    )
    torch.manual_seed(0)
    module = nn.Sequential(linear(), nn.GELU(), linear())
    found = run(module, X, stages_as="inductor", split=True)
    assert furthest(found, run(module, X)) <= 1e-5
    matrix = (WIDTH, WIDTH)  # the first microbatch's become the gradients, the second's are added
    assert sorted(map(tuple, sums)) == 4 * [(WIDTH,)] + 2 * [matrix]  # and two biases of each


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_every_models_compiled_graphs_differ_by_rounding(name: str) -> None:
    make, given = MODELS[name]
    torch.manual_seed(0)
    module = make()
    loss = lambda output, _: output.sin().square().mean()  # noqa: E731 - a norm's square is constant
    wanted = run(module, given, loss=loss)
    found = run(module, given, stages_as="inductor", split=True, loss=loss)
    assert found.refusal is None
    assert furthest(found, wanted) <= (2e-2 if name == "autocast" else 1e-5)


def test_memory_is_that_of_what_crosses_the_cuts() -> None:
    module = Block(WIDTH)
    eager, graphs = run(module, X), run(module, X, stages_as="aten")
    assert graphs.peak <= eager.peak
    split = run(module, X, stages_as="aten", split=True)
    assert split.peak <= 1.3 * graphs.peak


def test_they_run_so_where_another_thread_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    run(Block(WIDTH), X, stages_as="aten")
    calls: list[object] = []
    function = torch.compile(torch.sin, backend=lambda module, _: calls.append(module) or module)
    monkeypatch.setattr("torch.fx._symbolic_trace._is_fx_tracing_flag", True)
    assert torch.equal(function(X), X.sin())
    assert not calls
