"""An optimizer's state by names: another one goes on from it bit for bit, stepped or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeloom.ir import InputError
from pipeloom.runtime.optim.optimizer_state import flat_state, load_flat_state

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": torch.optim.AdamW,
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5),
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "adagrad": torch.optim.Adagrad,
    "rprop": torch.optim.Rprop,
    "nadam": torch.optim.NAdam,
    "adafactor": torch.optim.Adafactor,
}


def made(name: str) -> tuple[nn.Module, torch.optim.Optimizer, dict[int, str]]:
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    optimizer = OPTIMIZERS[name](module.parameters())
    return module, optimizer, {id(p): key for key, p in module.named_parameters()}


def stepped(module: nn.Module, optimizer: torch.optim.Optimizer, *names: str) -> None:
    optimizer.zero_grad()
    for name in names:
        parameter = module.get_parameter(name)
        parameter.grad = torch.full_like(parameter, 0.5) + parameter.detach()
    optimizer.step()


@pytest.mark.parametrize("before", [(), ("weight",), ("weight", "bias")])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_another_one_goes_on_bit_for_bit(name: str, before: tuple[str, ...]) -> None:
    module, optimizer, names = made(name)
    for _ in before:
        stepped(module, optimizer, *before)
    kept = {id(p): dict(state) for p, state in optimizer.state.items()}
    random = torch.get_rng_state()
    state = flat_state(optimizer, names)
    assert torch.equal(torch.get_rng_state(), random)
    assert {id(p): dict(s) for p, s in optimizer.state.items()} == kept  # the same objects
    other, loaded, own = made(name)
    other.load_state_dict(module.state_dict())
    load_flat_state(loaded, own, {key: clone(value) for key, value in state.items()})
    for _ in range(2):
        stepped(module, optimizer, "weight", "bias")
        stepped(other, loaded, "weight", "bias")
    assert all(map(torch.equal, module.parameters(), other.parameters()))


def clone(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def test_options_are_the_saved_ones_but_for_how_it_computes() -> None:
    _, optimizer, names = made("adamw")
    optimizer.param_groups[0].update(lr=0.5, foreach=True)
    _, other, own = made("adamw")
    load_flat_state(other, own, flat_state(optimizer, names))
    assert (other.param_groups[0]["lr"], other.param_groups[0]["foreach"]) == (0.5, None)


def test_a_group_has_one_option() -> None:
    _, optimizer, names = made("adamw")
    state = flat_state(optimizer, names) | {"param_groups.bias.lr": 7.0}
    line = "optimizer.param_groups.bias.lr: expected that of param_groups.weight.lr, 0.001, .* 7.0"
    with pytest.raises(InputError, match=line):
        load_flat_state(optimizer, names, state)


def test_an_optimizer_of_all_parameters_at_once_is_refused() -> None:
    module = nn.Linear(3, 2)
    names = {id(p): key for key, p in module.named_parameters()}
    for optimizer, why in {
        torch.optim.LBFGS(module.parameters()): "got LBFGS, whose step needs a closure$",
        torch.optim.SparseAdam(module.parameters()): "got SparseAdam: RuntimeError: .*dense",
    }.items():
        with pytest.raises(InputError, match=why) as caught:
            flat_state(optimizer, names)
        assert "\n" not in str(caught.value)
