"""Recomputation and offload on one rank: random numbers, shared storages, memory over time; and
in-place changes between F and B, which are refused or applied once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, mse_loss

from pipeloom.ir import InputError
from pipeloom.runtime import Pipeline
from tests.support.one_rank import (
    MIXED,
    OFFLOADED,
    PLAIN,
    RECOMPUTED,
    Of,
    Ran,
    by_autograd,
    differing,
    program,
    ran,
)

X, Y = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))
GIVEN: dict[str, Any] = {"targets": list(Y), "loss": mse_loss}


def mixing(m: Any, x: Tensor) -> Tensor:
    """Views, an output that is both saved and sent, and dropout."""
    a, b = m.first(x).chunk(2, -1)
    mixed = nn.functional.dropout(a * torch.sigmoid(b.transpose(0, 1)).transpose(0, 1), 0.5)
    return torch.tanh(m.second(mixed))


def averaging(m: Any, x: Tensor, *, copied: bool = False) -> Tensor:
    """Uses a running average; ``copied``: uses a copy of it."""
    y = m.layer(x)
    m.average.lerp_(y.detach().mean(0), 0.3)
    return torch.tanh(y * (m.average.clone() if copied else m.average))


def of_average() -> nn.Module:
    return Of(averaging, layer=nn.Linear(4, 4), average=torch.ones(4))


def clamping(m: Any, x: Tensor) -> Tensor:
    """Modifies its weight in each forward."""
    with torch.no_grad():
        m.second.weight.mul_(0.9)
    y: Tensor = m.second(m.first(x))
    return y


def shifting(m: Any, x: Tensor) -> Tensor:
    """Modifies its input in place."""
    x.add_(1)
    y: Tensor = m.layer(x)
    return y * x


class Spoiled(torch.autograd.Function):
    """Modifies in its backward a tensor of ``held`` that is kept for W: an input or a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, held: list[Tensor]) -> Tensor:
        ctx.held = held
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        for tensor in ctx.held:
            tensor.detach().add_(1)
        return dy.clone(), None


def waiting(which: str) -> nn.Module:
    """A product whose W is deferred, with a tensor that the preceding backward modifies: ``x`` or
    ``dy``."""

    def forward(m: Any, x: Tensor) -> Tensor:
        held = list[Tensor]()
        y = Spoiled.apply(m.before(x), held)  # type: ignore[no-untyped-call]
        out: Tensor = m.layer(y)
        if which == "x":
            held.append(y)
        elif out.requires_grad:
            out.register_hook(held.append)
        return out

    return Of(forward, before=nn.Linear(4, 4), layer=nn.Linear(4, 4))


def of_halves() -> nn.Module:
    return Of(mixing, first=nn.Linear(4, 12), second=nn.Linear(6, 4))


def clamped() -> nn.Module:
    return Of(clamping, first=nn.Linear(4, 4), second=nn.Linear(4, 4))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())


def trained(order: str, make: Callable[[], nn.Module] = of_halves, **options: Any) -> Ran:
    """Two steps whose gradients accumulate."""
    torch.manual_seed(0)
    return ran(order, [make(), make()], list(X), steps=2, **GIVEN, **options)


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("order", [RECOMPUTED, OFFLOADED, MIXED])
def test_gradients_are_bit_for_bit_those_without_levers(order: str, memory: bool) -> None:
    expected, found = trained(PLAIN), trained(order, memory=memory)
    assert len(found.values) == 2 + 8
    assert differing(found.values, expected.values) == []
    peak = found.pipeline.peak_memory
    assert peak < expected.pipeline.peak_memory
    found.pipeline.step(list(X), target=list(Y))
    assert found.pipeline.peak_memory == peak  # nothing is held between steps
    assert (peak > 0) == memory


def scaled(output: Tensor, target: Tensor) -> Tensor:
    return mse_loss(output.mul_(2), target)


IN_PLACE = {
    "buffer": (
        lambda: [of_average(), of_average()],
        r"stage [01], B: average float32\[4\] that the backward needs was changed in place",
    ),
    "weight": (
        lambda: [clamped(), clamped()],
        r"stage [01], B: second.weight float32\[4, 4\] that the backward needs",
    ),
    "loss": (
        lambda: [normed(), nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())],
        r"float32\[4, 4\] that the backward needs was change",
    ),
    "x of W": (lambda: [nn.Linear(4, 4), waiting("x")], r"stage 1, W: float32\[4, 4\]"),
    "dy of W": (lambda: [nn.Linear(4, 4), waiting("dy")], r"stage 1, W: float32\[4, 4\]"),
}


@pytest.mark.parametrize(
    ("what", "order"),
    [
        *((what, PLAIN) for what in IN_PLACE),
        *((what, OFFLOADED) for what in ("buffer", "weight", "loss", "dy of W")),
        *((what, RECOMPUTED) for what in ("loss", "x of W", "dy of W")),
    ],
)
def test_what_a_backward_needs_and_others_change_is_refused(what: str, order: str) -> None:
    make, text = IN_PLACE[what]
    loss = scaled if what == "loss" else mse_loss
    run = Pipeline(program(order), make(), loss=loss)
    with pytest.raises(InputError, match=text) as caught:
        run.step(list(X), target=list(Y))
    assert "\n" not in str(caught.value)


class Moving(nn.Linear):
    """Running statistics under names of its own, whose writes torch does not count."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return batch_norm(super().forward(x), self.mean, self.var, training=True)


def test_statistics_change_once_for_each_microbatch() -> None:
    torch.manual_seed(0)
    modules = [Moving(), Moving()]
    expected = copy.deepcopy(modules)
    for order, stages in ((RECOMPUTED, modules), (PLAIN, expected)):
        Pipeline(program(order), stages, loss=mse_loss).step(list(X), target=list(Y))
    for one, other in zip(modules, expected, strict=True):
        assert torch.equal(one.mean, other.mean)
        assert torch.equal(one.var, other.var)


def test_what_a_recomputed_forward_saved_is_its_own() -> None:
    """A buffer saved without a copy: R uses the copy that it ran with."""
    torch.manual_seed(0)
    modules = [of_average(), of_average()]
    expected = copy.deepcopy(modules)
    for module in expected:
        module.function = partial(averaging, copied=True)
    found = ran(RECOMPUTED, modules, list(X), **GIVEN).values
    assert differing(found, by_autograd(expected, list(X), **GIVEN), 1e-5) == []


def test_an_input_that_a_forward_changes_is_changed_once_and_not_recomputed() -> None:
    modules = [Of(shifting, layer=nn.Linear(4, 4)), nn.Linear(4, 4)]
    expected = copy.deepcopy(modules)
    xs, again = ([x.clone() for x in X] for _ in range(2))
    found = ran(PLAIN, modules, xs, **GIVEN).values
    assert torch.equal(torch.stack(xs), X + 1)
    assert differing(found, by_autograd(expected, again, **GIVEN), 1e-5) == []
    with pytest.raises(InputError, match="stage 0: expected a forward that leaves its input"):
        ran(RECOMPUTED, modules, list(X.clone()), **GIVEN)
