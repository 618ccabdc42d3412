"""End of a step on one rank: gradients summed, averaged and judged, and the optimizers stepped.

The executor makes its calls for ``reduce``, ``average``, ``step`` and the relays of norm and
verdict here (:class:`StepEnd`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import nn

from pipeloom.ir.model import program as ir

from ..executor.weight_stashing import make_stashes
from ..measure.op_timer import Call
from ..rank.context import RankContext
from ..rank.role import has_relays
from ..tensors.forward_state import ForwardState
from .data_parallel import make_averaging
from .grad_norm import make_norm_sum
from .norm_groups import check_norm_groups, make_norm_squares
from .optimizer_step import OptimizerStep
from .optimizers import make_optimizers
from .shared_parameters import SharedParameters


class StepEnd:
    """A rank's ``optimizers``, by stage, and what they wait for.

    ``modules``: the stages that the rank has for good; ``stashes``: of stages that step after each
    microbatch; ``seed``: what backward starts with, a microbatch's share in the gradients times the
    loss scale; ``updates``: whether the step under way ends with the optimizers', or leaves its
    gradients for the next one to add to; ``starts``: whether replicas begin as the first one, or
    these stages train already. All ranks make theirs at the same time, and ``close`` them.
    """

    def __init__(self, context: RankContext, *, starts: bool = True) -> None:
        program, role, options = context.program, context.role, context.options
        self._device = context.device
        self.modules = {s: context.store.module(s) for s in role.held}
        self.shared = SharedParameters(context)
        self.reduce = self.shared.reduction
        self.averaging = make_averaging(context, starts=starts)
        self.stashes = make_stashes(program, self.modules, context.memory)
        make = options.optimizer
        self.optimizers = {} if make is None else make_optimizers(self.modules, make)
        summed = bool(self.stashes) or not options.scale_grads
        self._shares = 1 if summed else program.schedule.problem.microbatches
        self.seed = torch.tensor(1.0 / self._shares, dtype=torch.float64, device=context.device)
        self.update = self._make_update(context)
        stepped = [i.stage for i in program.instructions[role.rank] if isinstance(i, ir.Step)]
        self._checks_norm_first = None if has_relays(program) else next(iter(stepped), None)
        self._watches = not (context.relays or role.held)
        self._snapshot: ForwardState | None = None
        self._refill: Call | None = None
        self.updates = True
        self.adds_up = False  # whether the last step left gradients to add to

    def _make_update(self, context: RankContext) -> OptimizerStep:
        options = context.options
        check_norm_groups(options, self.modules)
        squares, self._copies = make_norm_squares(context, self.modules)
        sums, self.close = make_norm_sum(context)
        if options.loss_scale is not None:
            self._rescale(options.loss_scale.scale)
        return OptimizerStep(
            context,
            self.optimizers,
            sums=sums,
            trained=_once(p for m in self.modules.values() for p in m.parameters()),
            counted=_once(p for s in self.modules for p in self.shared.counted(s)),
            squares=squares,
            rescale=self._rescale,
        )

    def begin(self, refill: Call, *, updates: bool) -> None:
        """Makes ready for a step's ops; ``refill`` makes ready for running them once more."""
        self.updates = updates
        if self.update.pending:
            self._refill = refill
            self._snapshot = ForwardState(self.modules.values(), [self._device])
        elif self.adds_up:
            self.shared.begin()
        else:
            self._clear_gradients()
        if self.averaging is not None and not self.update.pending:
            self.averaging.start()
        self.adds_up = not updates

    def follow(self, other: StepEnd) -> None:
        """Goes on after the last step of another program with the same stages, which is final."""
        self.adds_up = other.adds_up
        self.update.rescaled(other.update.loss_scale)

    def give_up(self) -> None:
        """Ends a step that failed: no norm is waited for any more."""
        self.update.pending = False
        self.shared.restore()

    @property
    def averages(self) -> Mapping[int, tuple[float, float]]:
        """Start and end of each stage's averaging in the last step, in seconds; empty where not
        known."""
        return {} if self.averaging is None else self.averaging.spans

    def average(self, stage: int) -> Callable[[], None]:
        """The call of an ``average``."""
        assert self.averaging is not None
        return partial(self.averaging.begin, stage)

    def step(self, stage: int) -> Call:
        """The call of a ``step``; where no sums are relayed a rank's first one judges before."""
        if stage in self.stashes:
            return partial(self.stashes[stage].step, self.optimizers.get(stage))
        judges = stage == self._checks_norm_first

        def step() -> None:
            if judges:
                self.check_norm()
            self.update.step(stage, updates=self.updates)
            if self._copies is not None:
                self._copies.gradients(stage)

        return step

    def check_norm(self) -> None:
        """Finishes averaging over the replicas, then judges the norm of all gradients."""
        if self.averaging is not None:
            self.averaging.finish()
        if self.updates:
            self.update.check_norm()

    def over(self) -> None:
        """The step's ops are done: a rank that steps no stage learns what the others judge."""
        if self._watches:
            self.check_norm()

    def validate(self) -> bool:
        """Whether the last step was wrong, if that was still open; its gradients are cleared."""
        if not self.update.pending:
            return False
        again = self.update.validate()
        self._clear_gradients()
        return again

    def restore_snapshot(self) -> None:
        """Restores the state of the step's begin, before its ops are run again."""
        assert self._snapshot is not None
        assert self._refill is not None
        self._snapshot.restore()
        self._refill()

    def _rescale(self, scale: float) -> None:
        self.seed.fill_(scale / self._shares)

    def _clear_gradients(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        self.shared.begin()


def _once(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [*{id(p): p for p in parameters}.values()]
