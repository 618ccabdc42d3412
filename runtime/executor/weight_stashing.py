"""Weight stashing: a microbatch's backward uses the weights of its forward, though updates came
between.

::

    F0 F1 F2  b0 step  F3  b1 step  b2 step  b3 step     on a stage that lags by two updates
    v0 v0 v0  v0       v1  v0       v0       v1           the version that each op uses

A forward runs on tensors of its own that share the parameters' memory. A step that finds them still
in use moves the parameters to a copy first, so a version is kept as long as a microbatch needs it,
and none is copied that nobody needs. See :mod:`pipeloom.ir.model.schedule` for how many
there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..dtensors import local, set_local
from ..measure.memory import Memory
from .stage_runner import Cell, Run, StageRunner

Version: TypeAlias = Mapping[str, Tensor]


class Stash(nn.Module):
    """The versions of one stage's weights that microbatches under way have."""

    def __init__(self, module: nn.Module, memory: Memory) -> None:
        super().__init__()
        self.module = module
        self._memory = memory
        self._newest: Version | None = None  # None: made when it is needed
        self._under_way: dict[Cell, Version] = {}

    def forward(self, run: Callable[[], None]) -> None:
        """Calls ``run`` while the module has the weights that this is called with."""
        run()

    def within(self, cell: Cell, run: Run) -> None:
        """Runs an op of the microbatch, and what it checkpoints, with the version that was newest
        in its F; recomputed, with the same."""
        if cell not in self._under_way:
            self._under_way[cell] = self._current()
        version = {f"module.{name}": tensor for name, tensor in self._under_way[cell].items()}
        functional_call(self, version, (partial(run, cell),))

    @torch.no_grad()
    def give_back(self, cell: Cell) -> None:
        """Adds the gradient that the microbatch's backward left to the parameters'."""
        version = self._under_way.pop(cell)
        for name, parameter in self.module.named_parameters():
            gradient, version[name].grad = version[name].grad, None
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Updates the parameters and clears their gradients; does nothing without an optimizer."""
        newest, self._newest = self._newest, None  # made anew: what is trained may be other by then
        if optimizer is None:
            return
        if any(version is newest for version in self._under_way.values()):
            for parameter in self.module.parameters():
                set_local(parameter, local(parameter).clone())
            self._memory.exclude(self.module)
        optimizer.step()
        optimizer.zero_grad()

    def _current(self) -> Version:
        if self._newest is None:
            self._newest = {  # own version counters: the optimizer raises the parameters'
                name: parameter.data.requires_grad_(parameter.requires_grad)
                for name, parameter in self.module.named_parameters()
            }
        return self._newest


class StashingRunner(StageRunner):
    """Runs a stage whose optimizer steps after each microbatch, as the module of its ``stash``."""

    def __init__(self, stage: int, stash: Stash, **given: Any) -> None:
        super().__init__(stage, stash.module, **given)
        self._stash = stash

    def _forward(self, cell: Cell) -> None:
        self._stash.within(cell, super()._forward)

    def _backward(self, cell: Cell) -> None:
        self._stash.within(cell, super()._backward)
        self._stash.give_back(cell)
