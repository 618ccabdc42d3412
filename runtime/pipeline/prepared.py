"""A program made ready to run on this rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from ..optim.optimizer_step import JudgedStepEnd, finish_before_state_dicts
from ..optim.step_end import StepEnd
from ..rank.context import RankContext
from .step_inputs import StepInputs
from .steps.setup import StepSetup


class Prepared:
    """What steps by one program use: its ``context``, ``step_end``, ``setup`` and ``inputs``.

    ``held``: what is given back at the end is added to it. ``finish``: called before a state dict
    of a stage or an optimizer is made; ``starts``: whether the stages have not trained yet. All
    ranks make theirs at the same time.
    """

    def __init__(
        self, context: RankContext, held: ExitStack, finish: Callable[[], None], *, starts: bool
    ) -> None:
        self.context, options = context, context.options
        kind = JudgedStepEnd if options.needs_norm else StepEnd
        self.step_end: StepEnd = kind(context, starts=starts)
        held.callback(self.step_end.close)
        self.setup = StepSetup(context, self.step_end)
        microbatches = context.program.schedule.problem.microbatches
        self.inputs = StepInputs(
            context, self.setup.cells, microbatches, varying=options.varying_shapes
        )
        if context.relays:
            stepped = self.step_end.modules.values(), self.step_end.optimizers.values()
            for hook in finish_before_state_dicts(finish, *stepped):
                held.callback(hook.remove)
