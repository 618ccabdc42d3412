"""What a backward needs and another op changed in place is told, as torch does; what forwards
change on purpose (running statistics, their inputs) is changed once."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from pipeloom.ir import InputError
from pipeloom.runtime import ChangedInPlaceError, Ledger, Memory, Pipeline
from pipeloom.runtime.executor.deferred_ops import Linear
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue
from tests.support.models import gradient, named
from tests.unit.runtime.executor.test_remat_ops import OFFLOADED, PLAIN, RECOMPUTED, program

X, Y = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))


class Average(nn.Module):
    """Computes with a running average; ``copied``: with a copy of it."""

    average: Tensor

    def __init__(self, *, copied: bool) -> None:
        super().__init__()
        self.layer, self.copied = nn.Linear(4, 4), copied
        self.register_buffer("average", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.average.lerp_(y.detach().mean(0), 0.3)
        return torch.tanh(y * (self.average.clone() if self.copied else self.average))


class Clamped(nn.Module):
    """Changes its weight in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.second.weight.mul_(0.9)
        y: Tensor = self.second(self.first(x))
        return y


class Shifting(nn.Module):
    """Changes its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        y: Tensor = self.layer(x)
        return y * x


class Numbered(nn.Module):
    """Puts another tensor in its buffer's place."""

    number: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("number", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.number = self.number + 1
        return x * self.number


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())


def pipeline(
    order: str,
    modules: list[nn.Module],
    loss: Callable[[Tensor, Tensor], Tensor] = mse_loss,
    *,
    memory: bool = True,
) -> Pipeline:
    return Pipeline(program(order), modules, loss=loss, memory=memory)


def one_process(modules: list[nn.Module], steps: int) -> None:
    x = X.clone()
    for _ in range(steps):
        for j in range(2):
            y = x.chunk(2)[j]
            for module in modules:
                y = module(y)
            (mse_loss(y, Y.chunk(2)[j]) / 2).backward()


def check_gradients(modules: list[nn.Module], expected: list[nn.Module]) -> None:
    found, wanted = (named(dict(enumerate(each)), gradient) for each in (modules, expected))
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], atol=1e-6) for name in found)


def scaled(output: Tensor, target: Tensor) -> Tensor:
    return mse_loss(output.mul_(2), target)


@pytest.mark.parametrize("order", [PLAIN, RECOMPUTED, OFFLOADED])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(4, 4), Numbered()),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    ],
    ids=["another tensor", "spectral norm"],
)
def test_buffers_and_gradients_are_one_processs(make: Callable[[], nn.Module], order: str) -> None:
    torch.manual_seed(0)
    modules = [make(), make()]
    expected = copy.deepcopy(modules)
    run = pipeline(order, modules)
    for _ in range(2):
        run.step(X, target=Y)
    one_process(expected, 2)
    check_gradients(modules, expected)
    for module, other in zip(modules, expected, strict=True):
        for (name, buffer), value in zip(module.named_buffers(), other.buffers(), strict=True):
            assert torch.allclose(buffer, value), name


@pytest.mark.parametrize("order", [PLAIN, OFFLOADED])
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Average(copied=False), r"stage [01], B: average float32\[4\] that the backward"),
        (Clamped, r"stage [01], B: second.weight float32\[4, 4\] that the backward needs"),
    ],
    ids=["buffer", "weight"],
)
def test_what_the_next_microbatch_changed_is_told(
    make: Callable[[], nn.Module], text: str, order: str
) -> None:
    run = pipeline(order, [make(), make()])
    with pytest.raises(InputError, match=text) as caught:
        run.step(X, target=Y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("order", [PLAIN, RECOMPUTED, OFFLOADED])
def test_a_loss_that_changes_what_the_model_saved_is_told(order: str) -> None:
    run = pipeline(order, [normed(), nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())], scaled)
    with pytest.raises(InputError, match=r"float32\[4, 4\] that the backward needs was change"):
        run.step(X, target=Y)


def test_what_a_recomputed_forward_saved_is_its_own() -> None:
    """A buffer saved without a copy: R's is the copy that it ran with."""
    torch.manual_seed(0)
    modules: list[nn.Module] = [Average(copied=False), Average(copied=False)]
    expected: list[nn.Module] = [Average(copied=True), Average(copied=True)]
    for module, other in zip(modules, expected, strict=True):
        other.load_state_dict(module.state_dict())
    pipeline(RECOMPUTED, modules).step(X, target=Y)
    one_process(expected, 1)
    check_gradients(modules, expected)


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("what", [0, 1], ids=["x", "dy"])
def test_what_waits_for_w_and_is_changed_is_told(memory: bool, what: int) -> None:
    queue = WeightQueue(Ledger() if memory else Memory())
    waiting = torch.randn(3, 4), torch.randn(3, 4)
    queue.put(Linear(nn.Parameter(torch.randn(4, 4))), *waiting)
    waiting[what].add_(1)
    with pytest.raises(ChangedInPlaceError, match=r"float32\[3, 4\]"):
        queue.run()


def test_an_input_that_a_forward_changes_is_changed_once() -> None:
    modules: list[nn.Module] = [Shifting(), nn.Linear(4, 4)]
    expected = copy.deepcopy(modules)
    x = X.clone()
    pipeline(PLAIN, modules).step(x, target=Y)
    assert torch.equal(x, X + 1)
    one_process(expected, 1)
    check_gradients(modules, expected)


def test_an_input_that_a_recomputed_forward_changes_is_refused() -> None:
    run = pipeline(RECOMPUTED, [Shifting(), nn.Linear(4, 4)])
    with pytest.raises(InputError, match="stage 0: expected a forward that leaves its input"):
        run.step(X.clone(), target=Y)
