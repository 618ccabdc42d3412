"""The end of a step on one rank: sums and averages gradients and steps the optimizers.

The executor gets from it the functions that run the program's instructions ``reduce``, ``average``,
``step`` and ``relay``. :mod:`.optimizer_step` extends it for optimizer steps that depend on the
norm of all gradients, and explains the *verdict*.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.schedule import Updates

from ..dtensors import is_dtensor, lay_out
from ..executor.weight_stashing import Stash
from ..measure.op_timer import Call
from ..rank.context import RankContext
from ..rank.loss_scale import LossScale
from ..rank.role import has_relays
from .data_parallel import make_averaging
from .norm_groups import has_unknown_others, make_norm_squares, shard_axes
from .optimizers import make_optimizers
from .shared_parameters import SharedParameters


class StepEnd:
    """Ends a training step on one rank: sums and averages gradients, then steps the optimizers.

    ``context``: the rank's program, options and resources. ``before``: the step end of an earlier
    program for the same stages, whose optimizers this one continues to use; None: the pipeline's
    first one, which sets the parameters of all replicas to those of the first. All ranks create and
    ``close`` theirs at the same time.

    Attributes: ``modules``, the stages that the rank owns; ``optimizers``, by stage; ``stashes``,
    the weight versions of stages whose optimizers step after each microbatch; ``seed``, the
    gradient with which each backward starts at the loss, 1/M if gradients are of the mean;
    ``updates``, whether the optimizers step at the end of the current step (otherwise, its
    gradients are kept for the next one); ``may_be_shards``, whether plain parameters may be shards
    that no option declares.
    """

    loss_scale: LossScale | None = None
    norm: float | None = None  # of all gradients, in the last step whose norm is known
    pending = False  # whether the verdict on the last step has not arrived yet

    def __init__(self, context: RankContext, before: StepEnd | None = None) -> None:
        program, role, options = context.program, context.role, context.options
        self._store = context.store
        self.modules = {s: context.store.module(s) for s in role.held}
        self.shared = SharedParameters(context)
        self._reduces = False  # whether the program sums gradients here
        axes = shard_axes(context, self.modules)
        self.averaging = make_averaging(context, axes, starts=before is None)
        self._each = program.schedule.updates is not Updates.ITERATION
        each = self.modules.items() if self._each else ()
        self.stashes = {s: Stash(module, context.memory) for s, module in each}
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        if before is not None:
            self.optimizers = before.optimizers
        elif options.optimizer is not None:
            self.optimizers = make_optimizers(self.modules, options.optimizer)
        summed = bool(self.stashes) or not options.scale_grads
        self._shares = 1 if summed else program.schedule.problem.microbatches
        self.seed = torch.tensor(1.0 / self._shares, dtype=torch.float64, device=context.device)
        self.may_be_shards = has_unknown_others(context, self.modules)
        self.squares = make_norm_squares(context, self.modules, axes)
        stepped = [i.stage for i in program.instructions[role.rank] if isinstance(i, ir.Step)]
        self._first = None if has_relays(program) else next(iter(stepped), None)
        self.updates = True
        self.adds_up = False  # whether the last step kept gradients for the next

    def begin(self, refill: Call, *, updates: bool) -> None:
        """Prepares a step: clears gradients, unless they are accumulated.

        ``refill``: prepares the step's first ops to run again, if the verdict on the last step
        requires that. ``updates``: whether the optimizers step. Raises InputError if ``updates`` is
        False and the program steps after each microbatch.
        """
        if self._each and not updates:
            raise InputError(
                "update: expected True with a program that steps after each microbatch, got False"
            )
        if not self.adds_up:
            self.clear_gradients()
        elif self._reduces:
            self.shared.begin()
        self.updates, self.adds_up = updates, not updates

    def clear_gradients(self) -> None:
        """Clears the gradients of the optimizers' parameters.

        Gradients of other parameters that the program sums are set aside, not cleared.
        """
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        if self._reduces:
            self.shared.begin()

    def follow(self, other: StepEnd) -> None:
        """Takes over the loss scale, and whether gradients are accumulated, from ``other``.

        ``other``: the step end of the program that ran the last step; its verdict is not pending.
        """
        self.adds_up = other.adds_up
        self.rescaled(other.loss_scale)

    def rescaled(self, scale: LossScale | None) -> None:
        """Sets the loss scale of the next step; does nothing if there is no loss scaling."""

    def give_up(self) -> None:
        """Ends a step that raised an error: restores the gradients of earlier steps."""
        self.shared.restore()

    def reduce(self, stages: tuple[int, ...]) -> Call:
        """Returns the function that runs the instruction ``reduce`` of ``stages``."""
        self._reduces = True
        return self.shared.reduction(stages)

    def average(self, stage: int) -> Call:
        """Returns the function that runs the instruction ``average`` of ``stage``."""
        assert self.averaging is not None
        return partial(self.averaging.begin, stage)

    def step(self, stage: int) -> Call:
        """Returns the function that runs the instruction ``step`` of ``stage``.

        If the program has no relays, the function for the rank's first ``step`` begins with
        :meth:`check_norm`.
        """
        if stage in self.stashes:
            return partial(self.stashes[stage].step, self.optimizers.get(stage))
        before: list[Call] = [self.check_norm] if stage == self._first else []
        if not self._store.resident:
            before.append(partial(self._store.settle, stage))
        module = self._store.module(stage)
        if not self._store.resident or any(map(is_dtensor, module.parameters())):
            before.append(lambda: lay_out(module.parameters()))
        return partial(self._step, stage, before)

    def _step(self, stage: int, before: Sequence[Call]) -> None:
        for call in before:
            call()
        if self.updates and stage in self.optimizers:
            self._optimize(stage)

    def _optimize(self, stage: int) -> None:
        """Steps the optimizer of ``stage``; subclasses may skip or postpone the step."""
        self.optimizers[stage].step()

    def check_norm(self) -> None:
        """Called before the first optimizer step of the rank: waits for the averages over replicas.

        A subclass also computes the norm of all gradients.
        """
        if self.averaging is not None:
            self.averaging.finish()

    def over(self) -> None:
        """Called at the end of each step, after all instructions of the rank.

        Here, it does nothing.
        """

    def validate(self) -> bool:
        """Waits for the verdict on the last step, if it is pending.

        Returns whether the ops since that step must be repeated; here always False.
        """
        return False

    def restore(self) -> None:
        """Restores the state at the beginning of the step.

        Called if the step's first ops must be repeated.
        """

    def close(self) -> None:
        """Closes the connections that only this step end uses."""
