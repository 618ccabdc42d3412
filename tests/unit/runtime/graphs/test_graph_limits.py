"""Stages for which a graph could be wrong run with autograd or are refused; the user's module is
not modified."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.support.inside import ModuleState, StageFunctions
from tests.support.one_rank import FUSED, SPLIT, Of, Ran, Shift, differing, each, ran, square

WIDTH = 4
X = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))
TOKENS = torch.tensor([1, 2, 1])
OUTSIDE = torch.ones(WIDTH)


class Scaled(nn.Module):
    """A layer, with a function applied to its output."""

    def __init__(self, by: Callable[[Scaled, Tensor], Tensor]) -> None:
        super().__init__()
        self.inside, self.by = nn.Linear(WIDTH, WIDTH), by
        self.settings: dict[Any, Any] = {"scale": 1.0}
        self.rate: Any = np.float64(1.0)
        self.tensor, self.calls = torch.ones(WIDTH), 0
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.loose = [nn.Parameter(torch.ones(WIDTH))]
        self.generator = torch.Generator().manual_seed(7)

    def __deepcopy__(self, _: dict[int, Any]) -> Scaled:
        other = Scaled(self.by)  # generators cannot be copied
        other.load_state_dict(self.state_dict())
        return other

    def forward(self, x: Tensor) -> Tensor:
        return self.by(self, self.inside(x))


def shared() -> nn.Module:
    block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())
    return nn.Sequential(block, nn.Linear(WIDTH, WIDTH), block)


def run(
    module: nn.Module, stages_as: str = "aten", *, order: str = FUSED, x: Tensor = X, **options: Any
) -> Ran:
    """A step of two microbatches, with the module as last stage."""
    return ran(each(order, 2), [Shift(x.shape), module], [x, x], stages_as=stages_as, **options)


def test_a_trace_leaves_the_module_as_it_was() -> None:
    module = shared()
    before = {name: id(p) for name, p in module.named_parameters(remove_duplicate=False)}
    run(module)
    after = {name: id(p) for name, p in module.named_parameters(remove_duplicate=False)}
    assert before == after


def cached(module: Scaled, y: Tensor) -> Tensor:
    if "table" not in module.settings:
        module.settings["table"] = torch.arange(WIDTH).to(y.dtype).cos()
    found: Tensor = y * module.settings["table"]
    return found


def counted(module: Scaled, y: Tensor) -> Tensor:
    module.calls += 1
    return y


def averaged(module: Scaled, y: Tensor) -> Tensor:
    module.mean = 0.9 * module.mean + y.detach().mean(0)
    return y


def seeded(module: Scaled, y: Tensor) -> Tensor:
    torch.manual_seed(5)
    return functional.dropout(y, 0.5)


def own_seeded(module: Scaled, y: Tensor) -> Tensor:
    return drawn(module, y, module.generator.manual_seed(4))


def drawn(module: Scaled, y: Tensor, generator: torch.Generator | None = None) -> Tensor:
    return y * torch.rand(y.shape, generator=generator or module.generator)


def again(module: Scaled, y: Tensor) -> Tensor:
    found: Tensor = checkpoint(module.inside, y, use_reentrant=False)
    return found + y


def again_reentrant(module: Scaled, y: Tensor) -> Tensor:
    found: Tensor = checkpoint(module.inside, y, use_reentrant=True)
    return found + y


REFUSED: dict[str, list[Callable[[Scaled, Tensor], Tensor]]] = {
    r"sets the attribute settings\.table": [cached],
    "sets the attribute calls": [counted],
    "in the place of mean": [averaged],
    r"depends on values in tensors .* at test_graph_limits.py:.*: ": [
        lambda _, y: y if y.sum() > 0 else -y
    ],
    r"draws or seeds random numbers": [
        seeded,
        own_seeded,
        lambda _, y: y * random.random(),
        lambda _, y: y * np.random.rand(),
    ],
    r"that is no parameter of a module": [lambda module, y: y * module.loose[0]],
    r"that is not of the stage's modules": [lambda _, y: y * OUTSIDE],
    r"computes a part again in its backward": [again],
    r"computes a part again .*torch\.utils\.checkpoint": [again_reentrant],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("why", REFUSED)
def test_refused_and_run_by_autograd(why: str) -> None:
    for by in REFUSED[why]:
        module, seen = Scaled(by), list[Ran]()
        for stages_as in ("eager", "aten"):
            np.random.seed(0), random.seed(0)
            seen.append(run(copy.deepcopy(module), stages_as))
        wanted, found = seen
        assert re.search(why, found.pipeline.eager_stages[1])
        assert differing(found.values, wanted.values) == []


def test_a_sparse_gradient_is_left_to_autograd() -> None:
    module = nn.Embedding(5, WIDTH, sparse=True)
    found = ran(each("0F{0} 0BW{0}", 2), [module], [TOKENS, TOKENS], stages_as="aten")
    assert found.pipeline.eager_stages == {0: "the gradient of weight is sparse"}


def test_a_stage_that_changes_its_input_is_left_to_autograd() -> None:
    module = Of(lambda m, x: m.inside(x.mul_(2)), inside=nn.Linear(WIDTH, WIDTH))
    eager, found = (
        ran(each("0F{0} 0BW{0}", 1), [copy.deepcopy(module)], [X.clone()], stages_as=way)
        for way in ("eager", "aten")
    )
    assert found.pipeline.eager_stages == {0: "its forward changes input 0"}
    assert differing(found.values, eager.values) == []


CHANGES: dict[str, Callable[[Scaled], object]] = {
    "a number of numpy": lambda module: setattr(module, "rate", np.float64(2.0)),
    "in a dict": lambda module: module.settings.update(scale=2.0),
    "a function": lambda module: setattr(module, "by", lambda _, y: 3 * y),
    "a module": lambda module: setattr(module, "inside", nn.Linear(WIDTH, WIDTH)),
    "a hook": lambda module: module.inside.register_forward_hook(lambda _, __, y: 2 * y),
    "a tensor in place": lambda module: module.tensor.mul_(2),
    "frozen": lambda module: module.inside.weight.requires_grad_(False),
}


def product(module: Scaled, y: Tensor) -> Tensor:
    found: Tensor = y * module.settings["scale"] * float(module.rate) * module.tensor
    return found


def step(found: Ran) -> Tensor:
    """The first loss of another step."""
    losses: list[Tensor] = []
    found.pipeline.step([X, X], target=[X, X], losses=losses)
    return losses[0]


@pytest.mark.parametrize("name", CHANGES)
def test_a_stage_that_has_changed_is_traced_again(name: str) -> None:
    module = Scaled(product)
    found = run(module)
    with patch.object(StageFunctions, "traced", wraps=StageFunctions.traced) as traced:
        step(found)
        assert (traced.call_count, found.pipeline.eager_stages) == (0, {})
        CHANGES[name](module)
        loss = step(found)
        assert (traced.call_count > 0, found.pipeline.eager_stages) == (True, {})
    assert loss.equal(square(module(X)))


def test_a_second_hook_on_a_parameter_and_a_removed_one_are_changes() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    layer.weight.register_hook(lambda gradient: gradient)
    state = ModuleState(layer)
    assert state.holds()
    layer.weight.register_hook(lambda gradient: 2 * gradient)
    assert not state.holds()
    layer.bias.register_post_accumulate_grad_hook(lambda _: None).remove()
    state = ModuleState(layer)
    assert state.holds()
    hook = layer.bias.register_post_accumulate_grad_hook(lambda _: None)
    assert not state.holds()
    state = ModuleState(layer)
    hook.remove()
    assert not state.holds()


HOOKS: dict[str, Callable[[nn.Linear], object]] = {
    "weight": lambda layer: layer.weight.register_hook(lambda gradient: 2 * gradient),
    "bias": lambda layer: get_gradient_edge(layer.bias).node.register_hook(lambda *_: None),
}


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_on_a_gradient_leaves_it_to_autograd(name: str) -> None:
    line = {1: f"inside.{name} has a hook on its gradient"}
    module = Scaled(product)
    found = run(module)
    assert found.pipeline.eager_stages == {}
    HOOKS[name](module.inside)
    step(found)
    assert found.pipeline.eager_stages == line
    assert run(module).pipeline.eager_stages == line


@pytest.mark.parametrize("order", [SPLIT, FUSED])
def test_an_output_that_the_loss_does_not_use_has_a_gradient_of_zeros(order: str) -> None:
    def heads(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        x = m.trunk(x)
        return m.one(x), m.other(x)

    def loss(output: Any, _: Any) -> Tensor:
        return square(output[0])

    trunk, one, other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)
    module = Of(heads, trunk=trunk, one=one, other=other)
    found = run(copy.deepcopy(module), order=order, loss=loss)
    wanted = run(module, "eager", loss=loss).values
    assert found.pipeline.eager_stages == {}
    none = {f"1.other.{name}": torch.zeros_like(p) for name, p in other.named_parameters()}
    assert differing(found.values, wanted | none) == []
