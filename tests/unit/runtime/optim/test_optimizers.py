"""Any optimizer: a step that is taken early and undone has no effect, and loading a state resumes
bitwise equally."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pipeloom import InputError, LossScale, Pipeline, compile_schedule
from tests.support.hub import on_threads, own
from tests.support.one_rank import square
from tests.support.schedules import schedule


class Odd(torch.optim.Optimizer):
    """Keeps numbers and lists, changes its options, replaces its state and writes gradients."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "decay": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["decay"] *= 0.99
            for p in (p for p in group["params"] if p.grad is not None):
                entry = self.state[p]
                entry["count"] = entry.get("count", 0) + 1
                entry.setdefault("norms", []).append(float(p.grad.norm()))
                entry["mean"] = entry.get("mean", torch.zeros_like(p)) * 0.9 + p.grad
                p.grad.mul_(0.5).add_(entry["mean"])
                p.sub_(p.grad * group["lr"] * group["decay"] / entry["count"])


Make = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "adam": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "dampened": partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5),
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "adagrad": partial(torch.optim.Adagrad, lr=0.01),
    "rprop": partial(torch.optim.Rprop, lr=0.01),
    "nadam": torch.optim.NAdam,
    "adafactor": partial(torch.optim.Adafactor, lr=0.01),
    "foreach": partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True, foreach=True),
    "fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "odd": partial(Odd, lr=0.05),
}
LOADED = [name for name in OPTIMIZERS if name not in ("odd", "tensor lr")]


class Sometimes(nn.Linear):
    """Uses its bias only if requested."""

    biased = False

    def __init__(self) -> None:
        super().__init__(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = x @ self.weight.T
        return out + self.bias if self.biased else out


def pipeline(make: Make, ranks: int, *, ahead: bool = True, **options: Any) -> Pipeline:
    torch.manual_seed(0)
    plan = compile_schedule(schedule("1f1b", ranks, 2), post_validation=ahead and ranks > 1)
    options |= {"loss": square, "optimizer": make, "transport": own(), "post_validation": ahead}
    return Pipeline(plan, [Sometimes() for _ in range(ranks)], **options)


def step(tested: Pipeline, number: int, factor: float = 1.0, *, biased: bool = True) -> None:
    for module in tested.modules.values():
        module.biased = biased
    x = factor * torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
    tested.step(x, target=x)


def clipped(name: str, ahead: bool) -> Any:
    """The parameters and optimizer state of a rank after steps that are clipped, not clipped,
    skipped and clipped, each with another learning rate before the verdict."""
    tested = pipeline(OPTIMIZERS[name], 2, ahead=ahead, clip_grad_norm=1.0)
    seen = []
    for number, factor in enumerate((30.0, 0.01, inf, 30.0, 0.01)):
        step(tested, number, factor, biased=number % 2 == 1)
        seen.append(tested.grad_norm)
        for optimizer in tested.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * 0.9
    tested.finish()
    modules = [dict(module.named_parameters()) for module in tested.modules.values()]
    states = [optimizer.state_dict() for optimizer in tested.optimizers.values()]
    tested.close()
    return deepcopy((modules, states)), seen


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_taken_ahead_end_as_those_that_wait(name: str) -> None:
    ahead, waited = (on_threads(partial(clipped, name, how), 2) for how in (True, False))
    for rank in range(2):
        assert_close(ahead[rank][0], waited[rank][0], rtol=0.0, atol=0.0)
        assert [norm > 1.0 for norm in waited[rank][1][:2]] == [True, False]


@pytest.mark.parametrize("before", ["never stepped", "weights alone", "all"])
@pytest.mark.parametrize("name", LOADED)
def test_another_one_goes_on_bit_for_bit(name: str, before: str) -> None:
    first, second = (pipeline(OPTIMIZERS[name], 1) for _ in range(2))
    for number in range(0 if before == "never stepped" else 2):
        step(first, number, biased=before == "all")
    (optimizer,) = first.optimizers.values()
    kept, drawn = {id(p): dict(s) for p, s in optimizer.state.items()}, torch.get_rng_state()
    state = first.state_dict()
    assert torch.equal(torch.get_rng_state(), drawn)
    assert {id(p): dict(s) for p, s in optimizer.state.items()} == kept  # the same objects
    second.load_state_dict(deepcopy(state))
    for number in range(2, 4):
        step(first, number)
        step(second, number)
    found, wanted = (tested.modules[0].state_dict() for tested in (second, first))
    assert_close(found, wanted, rtol=0.0, atol=0.0)


def test_options_are_the_saved_ones_but_for_how_it_computes() -> None:
    first, second = (pipeline(torch.optim.AdamW, 1) for _ in range(2))
    first.optimizers[0].param_groups[0].update(lr=0.5, foreach=True)
    second.load_state_dict(first.state_dict())
    loaded = second.optimizers[0].param_groups[0]
    assert (loaded["lr"], loaded["foreach"]) == (0.5, None)
    state = first.state_dict()
    state["optimizer"]["param_groups.bias.lr"] = 7.0
    line = "optimizer.param_groups.bias.lr: expected that of param_groups.weight.lr, 0.5, .* 7.0"
    with pytest.raises(InputError, match=line):
        second.load_state_dict(state)


def test_an_optimizer_of_sparse_gradients_has_no_state_by_names() -> None:
    """Optimizers with a closure: ``tests/unit/runtime/pipeline/test_state.py``."""
    with pytest.raises(InputError, match=r"got SparseAdam: RuntimeError: .*dense") as caught:
        pipeline(torch.optim.SparseAdam, 1).state_dict()
    assert "\n" not in str(caught.value)


def test_the_scale_is_that_of_torchs_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    scale, parameter = LossScale(8.0, interval=3), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for value in (1.0, 1.0, 1.0, inf, 1.0, -inf, 1.0, 1.0, 1.0, 1.0):
        parameter.grad = torch.tensor([value])
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
        scale = scale.after(value == 1.0)
        assert scale.scale == scaler.get_scale()
