"""The end of a step on one rank: sums and averages gradients and steps the optimizers.

The executor gets its calls for ``reduce``, ``average``, ``step`` and the relays of norm and verdict
here. :mod:`.optimizer_step` has the steps that depend on the norm of all gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from .norm_groups import check_norm_groups, make_norm_squares, shard_axes
from .optimizers import make_optimizers
from .shared_parameters import SharedParameters


class StepEnd:
    """A rank's ``optimizers``, by stage, and what must be done before they step.

    ``modules``: the stages that the rank owns. ``stashes``: for stages that step after each
    microbatch. ``seed``: the initial gradient of each backward, which is the microbatch's share of
    the loss. ``updates``: whether the current step ends with the optimizers' or keeps its gradients
    for the next step. ``before``: that of an earlier program for the same stages, whose optimizers
    this one continues to use; without it, replicas are set to the first one. ``may_be_shards``:
    whether plain parameters may be shards over pipelines that nothing connects. All ranks create
    and ``close`` theirs at the same time.
    """

    loss_scale: LossScale | None = None
    norm: float | None = None  # of all gradients, in the last step with a verdict
    pending = False  # whether the verdict on the last step is still missing

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
        self.may_be_shards = check_norm_groups(options, self.modules)
        self.squares, self._copies = make_norm_squares(context, self.modules, axes)
        stepped = [i.stage for i in program.instructions[role.rank] if isinstance(i, ir.Step)]
        self._first = None if has_relays(program) else next(iter(stepped), None)
        self.updates = True
        self.adds_up = False  # whether the last step kept gradients for the next

    def begin(self, refill: Call, *, updates: bool) -> None:
        """Prepares a step's ops; ``refill`` prepares repeating them.

        Raises InputError if the program cannot run without optimizer steps.
        """
        if self._each and not updates:
            raise InputError(
                "update: expected True with a program that steps after each microbatch, got False"
            )
        if not self.adds_up:
            self.clear_gradients()
        elif self._reduces:
            self.shared.begin()
        if self.averaging is not None:
            self.averaging.start()
        self.updates, self.adds_up = updates, not updates

    def clear_gradients(self) -> None:
        """Clears the optimizers' gradients; sets others aside if the program sums them."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        if self._reduces:
            self.shared.begin()

    def follow(self, other: StepEnd) -> None:
        """Takes over the state after the final step of another program for the same stages."""
        self.adds_up = other.adds_up
        self.rescaled(other.loss_scale)

    def rescaled(self, scale: LossScale | None) -> None:
        """Sets the loss scale of the next step, if there is one."""

    def give_up(self) -> None:
        """Ends a step that failed."""
        self.shared.restore()

    @property
    def averages(self) -> Mapping[int, tuple[float, float]]:
        """Start and end of each stage's averaging in the last step, in seconds; {} if unknown."""
        return {} if self.averaging is None else self.averaging.spans

    def reduce(self, stages: tuple[int, ...]) -> Call:
        """Returns the call of a ``reduce``."""
        self._reduces = True
        return self.shared.reduction(stages)

    def average(self, stage: int) -> Call:
        """Returns the call of an ``average``."""
        assert self.averaging is not None
        return partial(self.averaging.begin, stage)

    def step(self, stage: int) -> Call:
        """Returns the call of a ``step``; without relays, a rank's first also checks the norm."""
        if stage in self.stashes:
            return partial(self.stashes[stage].step, self.optimizers.get(stage))
        before: list[Call] = [self.check_norm] if stage == self._first else []
        if not self._store.resident:
            before.append(partial(self._store.settle, stage))
        module = self._store.module(stage)
        if not self._store.resident or any(map(is_dtensor, module.parameters())):
            before.append(lambda: lay_out(module.parameters()))
        if self._copies is not None:
            before.append(partial(self._copies.gradients, stage))
        return partial(self._step, stage, before)

    def _step(self, stage: int, before: Sequence[Call]) -> None:
        for call in before:
            call()
        if self.updates and stage in self.optimizers:
            self._optimize(stage)

    def _optimize(self, stage: int) -> None:
        """Steps the stage's optimizer, after the last op of the stage."""
        self.optimizers[stage].step()

    def check_norm(self) -> None:
        """Finishes averaging over the replicas, before the first optimizer steps."""
        if self.averaging is not None:
            self.averaging.finish()

    def over(self) -> None:
        """Called after the step's ops."""

    def validate(self) -> bool:
        """Waits for a pending verdict; returns whether the ops of this step must be repeated."""
        return False

    def restore(self) -> None:
        """Restores the state at the beginning of the step, before its ops are repeated."""

    def close(self) -> None:
        """Closes its own connections."""
