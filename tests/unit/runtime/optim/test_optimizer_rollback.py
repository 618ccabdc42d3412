"""A step that is taken back leaves nothing behind, whatever the optimizer; redone, it is the
same."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeloom.runtime import LossScale
from pipeloom.runtime.optim.optimizer_rollback import RevertibleOptimizer


class Odd(torch.optim.Optimizer):
    """Keeps numbers and lists, changes its own options, replaces its state and writes gradients."""

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


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "odd": lambda p: Odd(p, lr=0.05),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "foreach": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}
STEPS = 4


class Model:
    """Two parameters, one of which has a gradient in every other step only."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.module = nn.Linear(3, 2)
        self.optimizer = OPTIMIZERS[name](self.module.parameters())

    def differentiate(self, step: int, factor: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(step)
        for i, p in enumerate(self.module.parameters()):
            gradient = torch.randn(p.shape, generator=generator) * factor
            p.grad = None if i and step % 2 == 0 else gradient

    def everything(self) -> Any:
        gradients = [p.grad for p in self.module.parameters()]
        return deepcopy((list(self.module.parameters()), gradients, self.optimizer.state_dict()))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_undone_it_is_as_before(name: str) -> None:
    model = Model(name)
    undoable = RevertibleOptimizer(model.optimizer)
    for step in range(STEPS):
        model.differentiate(step)
        before = model.everything()
        undoable.step()
        assert not same(model.everything(), before)
        undoable.undo()
        undoable.redo(steps=False)
        assert same(model.everything(), before)
        undoable.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("held", [False, True])
def test_redone_it_is_a_step_with_the_options_of_its_time(name: str, held: bool) -> None:
    ahead, plain = Model(name), Model(name)
    undoable = RevertibleOptimizer(ahead.optimizer)
    for step in range(STEPS):
        ahead.differentiate(step)
        undoable.hold() if held else undoable.step()
        for model in (ahead, plain):
            if model is plain:
                plain.differentiate(step, 0.5)
                plain.optimizer.step()
            for group in model.optimizer.param_groups:
                group["lr"] = group["lr"] * 0.9  # a scheduler, before the verdict
        undoable.undo()
        for p in ahead.module.parameters():
            if p.grad is not None:
                p.grad.mul_(0.5)
        undoable.redo(steps=True)
        assert same(ahead.everything(), plain.everything())


def test_the_scale_is_that_of_torchs_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    scale, parameter = LossScale(8.0, interval=3), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for value in (1.0, 1.0, 1.0, float("inf"), 1.0, float("nan"), 1.0, 1.0, 1.0, 1.0):
        parameter.grad = torch.tensor([value])
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
        scale = scale.after(value == 1.0)
        assert scale.scale == scaler.get_scale()
