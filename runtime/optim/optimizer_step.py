"""One rank's optimizer steps if these depend on the norm of all ranks' gradients.

::

    plain     W ... | all sums gathered | clip, step                    | 0F0 0F1 ...
    relayed   W ... | sums of the ranks so far | step | 0F0 0F1 verdict | 0B0 ...
                                                                 └ wrong: undo, clip, step; 0F0 0F1

The norm is needed to clip gradients, and to skip a step with NaN or Inf. Without post-validation
("plain"), all ranks wait for it. With post-validation ("relayed"), a rank only gets the sum of
squares of the ranks before it, and steps before the norm is known, with unchanged gradients. (If
the sum so far already exceeds the limit or is NaN, it postpones its step, as the clipping factor
depends on all ranks.) The *verdict* is the message with the norm, which arrives after the next
iteration's first F's. If it shows that a step was wrong, the ranks undo it, step again and repeat
these F's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ..dtensors import lay_out
from ..measure.op_timer import Call
from ..rank.context import RankContext
from ..rank.loss_scale import LossScale
from ..tensors.forward_state import ForwardState
from .grad_norm import GlobalNorm, NormRelay, make_norm_sum
from .optimizer_rollback import RevertibleOptimizer
from .step_end import StepEnd


class JudgedStepEnd(StepEnd):
    """Ends a training step whose optimizer steps depend on the norm of all gradients.

    ``seed`` (see :class:`StepEnd`) includes the loss scale. ``pending``: whether the optimizers
    have stepped before the norm was known, and the verdict has not arrived yet. The next step's
    first ops run meanwhile.
    """

    def __init__(self, context: RankContext, before: StepEnd | None = None) -> None:
        super().__init__(context, before)
        most, self._ahead = context.options.clip_grad_norm, context.relays
        self._sums, self._close = make_norm_sum(context)
        self._most = math.inf if most is None else most
        self._trained = _once(p for m in self.modules.values() for p in m.parameters())
        # of each of the model's parameters, only one copy is included in the norm
        self._counted = _once(p for s in self.modules for p in self.shared.counted(s))
        relayed = self._ahead and self._sums is not None and not self._sums.last
        self._revertible = {
            stage: RevertibleOptimizer(optimizer)
            for stage, optimizer in self.optimizers.items()
            if relayed
        }
        self._steps_nothing = not (context.relays or context.role.held)
        self._steps = True
        self._snapshot: ForwardState | None = None
        self._refill: Call | None = None
        self.rescaled(context.options.loss_scale)
        self._scale_before = self.loss_scale

    def begin(self, refill: Call, *, updates: bool) -> None:
        if not self.pending:
            super().begin(refill, updates=updates)
            return
        self._refill = refill
        self._snapshot = ForwardState(self.modules.values(), [self.seed.device])
        self.updates, self.adds_up = updates, not updates

    def restore(self) -> None:
        assert self._snapshot is not None
        assert self._refill is not None
        self._snapshot.restore()
        self._refill()

    def give_up(self) -> None:
        """Ends a step that raised an error; :meth:`validate` then no longer waits for a verdict."""
        self.pending = False
        super().give_up()

    def over(self) -> None:
        """Helps to compute the norm of all gradients, on a rank that has no optimizer step."""
        if self._steps_nothing:
            self.check_norm()

    def close(self) -> None:
        self._close()

    def check_norm(self) -> None:
        """Decides whether this rank's optimizers step, before the first one does.

        Without post-validation (and on the last rank with it), the norm is computed, and gradients
        are clipped; the optimizers step unless the norm is NaN or Inf. Otherwise only the sum up to
        this rank is known; the optimizers step unless that exceeds the limit or is NaN or Inf.
        """
        super().check_norm()
        if self._sums is None or not self.updates:
            return
        lay_out(self._trained)
        if self.loss_scale is not None:
            self._multiply(1.0 / self.loss_scale.scale)
        found = self._sums.add(self.squares(self._counted))
        known = GlobalNorm(found**0.5, self._most)
        self._scale_before = self.loss_scale
        self._scaled(known)
        self.pending = self._ahead
        if self._sums.last:
            self.norm = known.norm
            self._clip(known)
            self._steps = known.finite
        else:
            self._steps = known.plain

    def _optimize(self, stage: int) -> None:
        revertible = self._revertible.get(stage)
        if revertible is not None and not self._steps:
            revertible.hold()
        elif self._steps:
            (revertible or self.optimizers[stage]).step()

    def validate(self) -> bool:
        """Waits for the norm of the last step, if pending, and corrects the optimizers' step.

        If gradients had to be clipped or the step skipped, undoes this rank's step and, unless it
        is to be skipped, repeats it with clipped gradients (except on the last rank, which already
        knew the norm). Then returns True: some rank may have stepped wrongly, so the ops since the
        step must be repeated. Otherwise returns False.
        """
        if not self.pending or not isinstance(self._sums, NormRelay):
            return False
        self.pending = False
        known = GlobalNorm(self._sums.total() ** 0.5, self._most)
        self.norm = known.norm
        if known.plain:
            return False
        self._scaled(known)
        if not self._sums.last:
            self._step_again(known)
        return True

    def rescaled(self, scale: LossScale | None) -> None:
        """Sets the loss scale of the next step; must not be called while a verdict is pending."""
        self.loss_scale = scale
        if scale is not None:
            self.seed.fill_(scale.scale / self._shares)

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
            found = torch.tensor(norm.norm, dtype=torch.float64)
            # without foreach, as one operation cannot contain DTensors of different meshes
            nn.utils.clip_grads_with_norm_(self._trained, self._most, found, foreach=False)

    @torch.no_grad()
    def _multiply(self, factor: float) -> None:
        for parameter in self._trained:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _scaled(self, norm: GlobalNorm) -> None:
        if self._scale_before is not None:
            self.rescaled(self._scale_before.after(norm.finite))


def _once(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [*{id(p): p for p in parameters}.values()]


class Finishing:
    """A hook that calls ``finish`` before a module's or optimizer's ``state_dict`` is created.

    A copy of it (by pickle or ``deepcopy``) does nothing.
    """

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
    """Makes the method ``state_dict`` of all modules and optimizers call ``finish`` first.

    Returns the handles by which these hooks can be removed.
    """
    hook = Finishing(finish)
    asked: list[Any] = [*modules, *optimizers]
    return [each.register_state_dict_pre_hook(hook) for each in asked]
