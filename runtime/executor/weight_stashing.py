"""Weight stashing (PipeDream): a microbatch's backward uses the weights of its forward.

It does so even if the optimizer has stepped in between::

    F0 F1 F2  b0 step  F3  b1 step  b2 step  b3 step     a stage with three microbatches in flight
    v0 v0 v0  v0       v1  v0       v0       v1           the version that each op uses

Forwards run on a *version*: separate tensors that share the parameters' memory. If a step finds
that unfinished microbatches use the newest version, it first moves the parameters to a copy. So
only versions in use are copied, and each is dropped when no microbatch needs it any more.
:func:`pipeloom.ir.model.schedule.versions` returns the number of versions.
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
    """The versions of one stage's weights that unfinished microbatches use."""

    def __init__(self, module: nn.Module, memory: Memory) -> None:
        super().__init__()
        self.module = module
        self._memory = memory
        self._newest: Version | None = None  # None: created on demand
        self._under_way: dict[Cell, Version] = {}

    def forward(self, run: Callable[[], None]) -> None:
        """Only calls ``run``. It is called by ``functional_call``, which replaces the weights."""
        run()

    def within(self, cell: Cell, run: Run) -> None:
        """Calls ``run(cell)`` with the weights that were the newest when this microbatch's F ran.

        Forwards that are repeated, by R or by activation checkpointing, use these weights, too.
        """
        if cell not in self._under_way:
            self._under_way[cell] = self._current()
        version = {f"module.{name}": tensor for name, tensor in self._under_way[cell].items()}
        functional_call(self, version, (partial(run, cell),))

    @torch.no_grad()
    def give_back(self, cell: Cell) -> None:
        """Adds the gradients of the version that a microbatch used to the parameters' ``.grad``.

        Called after the microbatch's B.
        """
        version = self._under_way.pop(cell)
        for name, parameter in self.module.named_parameters():
            gradient, version[name].grad = version[name].grad, None
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Updates the parameters and clears their gradients; does nothing without an optimizer."""
        newest, self._newest = self._newest, None  # created again: requires_grad may change
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
            self._newest = {  # .data has version counters of its own
                name: parameter.data.requires_grad_(parameter.requires_grad)
                for name, parameter in self.module.named_parameters()
            }
        return self._newest


class StashingRunner(StageRunner):
    """Runs, with stashed weights, a stage whose optimizer steps after each microbatch."""

    def __init__(self, stage: int, stash: Stash, **given: Any) -> None:
        super().__init__(stage, stash.module, **given)
        self._stash = stash

    def _forward(self, cell: Cell) -> None:
        self._stash.within(cell, super()._forward)

    def _backward(self, cell: Cell) -> None:
        self._stash.within(cell, super()._backward)
        self._stash.give_back(cell)
