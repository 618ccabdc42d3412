"""One rank's optimizer steps: by the norm of all ranks' gradients, or ahead of it.

::

    plain     W ... | all sums gathered | clip, step                    | 0F0 0F1 ...
    relayed   W ... | sums of the ranks so far | step | 0F0 0F1 verdict | 0B0 ...
                                                                 └ wrong: undo, clip, step; 0F0 0F1

A rank that steps ahead does so only with gradients as they are: where the sum so far is above what
is allowed, or NaN, it waits for the verdict, as the factor depends on all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ..dtensors import lay_out
from ..rank.context import RankContext
from ..rank.loss_scale import LossScale
from .grad_norm import GlobalNorm, NormSum
from .optimizer_rollback import RevertibleOptimizer
from .shard_squares import Squares


class OptimizerStep:
    """The steps of the stages that this rank owns, all judged together.

    ``trained``: the parameters that this rank steps; ``counted``: those whose gradients it adds to
    the norm, so that each of the model's is counted on one rank. ``sums`` is None where nothing is
    judged. ``rescale`` is told of each new loss scale.
    """

    def __init__(
        self,
        context: RankContext,
        optimizers: Mapping[int, torch.optim.Optimizer],
        *,
        sums: NormSum | None,
        trained: Sequence[nn.Parameter],
        counted: Sequence[nn.Parameter],
        squares: Squares,
        rescale: Callable[[float], object],
    ) -> None:
        most, ahead = context.options.clip_grad_norm, context.relays
        self._store, self._optimizers, self._sums = context.store, optimizers, sums
        self._most = math.inf if most is None else most
        self._trained, self._counted, self._squares = trained, counted, squares
        self._rescale, self._ahead = rescale, ahead
        self._revertible = {
            stage: RevertibleOptimizer(optimizer)
            for stage, optimizer in optimizers.items()
            if ahead and sums is not None and not sums.last
        }
        self._steps = True
        self._scale_before = self.loss_scale = context.options.loss_scale
        self.global_norm: GlobalNorm | None = None
        self.pending = False  # whether the verdict on the last step is still to come

    def check_norm(self) -> None:
        """Looks at the norm of all gradients once they are there, before the first optimizer
        steps."""
        if self._sums is None:
            return
        lay_out(self._trained)
        if self.loss_scale is not None:
            self._multiply(1.0 / self.loss_scale.scale)
        found = self._sums.add(self._squares(self._counted))
        if not self._ahead:
            found = self._sums.total()
        known = GlobalNorm(found**0.5, self._most)
        self._scale_before = self.loss_scale
        self._scaled(known)
        self.pending = self._ahead
        if self._sums.last or not self._ahead:
            self.global_norm = known
            self._clip(known)
            self._steps = known.finite
        else:
            self._steps = known.plain

    def step(self, stage: int, *, updates: bool = True) -> None:
        """Steps the stage's optimizer, if that is right so far; nothing computes with the stage any
        more.

        Without ``updates`` it does not: the next step adds to the gradients.
        """
        self._store.settle(stage)
        lay_out(self._store.module(stage).parameters())
        if not updates:
            return
        revertible = self._revertible.get(stage)
        if revertible is not None and not self._steps:
            revertible.hold()
        elif stage in self._optimizers and self._steps:
            (revertible or self._optimizers[stage]).step()

    def validate(self) -> bool:
        """The verdict on the last step; where it was wrong, it is taken back and done again.

        Whether what was computed since must be: some rank's step may have been wrong.
        """
        assert self._sums is not None
        self.pending = False
        self.global_norm = GlobalNorm(self._sums.total() ** 0.5, self._most)
        if self.global_norm.plain:
            return False
        self._scaled(self.global_norm)
        if not self._sums.last:
            self._step_again(self.global_norm)
        return True

    def rescaled(self, scale: LossScale | None) -> None:
        """The loss scale of the next step, where no verdict is pending."""
        self.loss_scale = scale
        if scale is not None:
            self._rescale(scale.scale)

    def _step_again(self, norm: GlobalNorm) -> None:
        for stage in self._store.stages:
            self._store.settle(stage)
        for revertible in self._revertible.values():
            revertible.undo()
        self._clip(norm)
        for revertible in self._revertible.values():
            revertible.redo(steps=norm.finite)

    def _clip(self, norm: GlobalNorm) -> None:
        if norm.finite and not norm.plain:
            self._multiply(norm.factor)

    @torch.no_grad()
    def _multiply(self, factor: float) -> None:
        for parameter in self._trained:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _scaled(self, norm: GlobalNorm) -> None:
        if self._scale_before is not None:
            self.rescaled(self._scale_before.after(norm.finite))


class Finishing:
    """A hook of a module or an optimizer that calls ``finish``; a copy of it does nothing."""

    def __init__(self, finish: Callable[[], None] | None) -> None:
        self._finish = finish

    def __call__(self, *_: object) -> None:
        if self._finish is not None:
            self._finish()

    def __reduce__(self) -> tuple[type[Finishing], tuple[None]]:
        return Finishing, (None,)


def finish_before_state_dicts(
    finish: Callable[[], None],
    modules: Iterable[nn.Module],
    optimizers: Iterable[torch.optim.Optimizer],
) -> list[RemovableHandle]:
    """A ``state_dict`` of any of these calls ``finish`` first, until the hooks are removed."""
    hook = Finishing(finish)
    asked: list[Any] = [*modules, *optimizers]
    return [each.register_state_dict_pre_hook(hook) for each in asked]
