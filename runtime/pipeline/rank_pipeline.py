"""One rank of a program: connected, made of its stages, and given back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Self, Unpack

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program

from ..device import Device
from ..errors import ExecutionError
from ..measure.plan_deviation import made_without_barrier
from ..optim.optimizers import taken_over
from ..rank.options import Options, PipelineOptions
from ..stages.store import Stage
from ..tensors.receive_buffers import ReceiveBuffers
from ..transport import ending_together
from .agreement import FirstStep, same
from .layered_source import as_planned
from .model_source import ModelSource, Place, options_of, placed_stages
from .preparation import Prepared, context_after, context_of
from .state import PipelineState
from .step_arguments import StepData
from .steps.forward_rounds import ForwardRounds


class RankPipeline:
    """A rank's part of a pipeline beside its steps: its making, its state, its end."""

    def __init__(
        self,
        program: Program,
        stages: Mapping[int, Stage] | Sequence[Stage],
        **options: Unpack[Options],
    ) -> None:
        given, problem = PipelineOptions(**options), program.schedule.problem
        with ExitStack() as held:
            with given.made_together():
                context = context_of(program, stages, given, held)
                own = Prepared(context, held, self.finish, starts=True)
                self._forward_rounds = ForwardRounds(context, own.setup, own.step_end)
            self.program, self.device, self.store = program, context.device, context.store
            self.num_stages, self.microbatches = problem.stages, problem.microbatches
            self.rank, self._transport = context.role.rank, context.transport
            self.modules, self.optimizers = own.step_end.modules, own.step_end.optimizers
            # own: the pipeline's program; given: that of the last step that was given one; last:
            # from whose state the next step goes on; ran: what ran the last step
            self._own = self._last = self._ran = own
            self._given: Prepared | None = None
            self._given_held = ExitStack()
            self._buffers = ReceiveBuffers(self.device)  # of steps with programs of their own
            self._state = PipelineState(context, own.step_end)
            self._first = FirstStep(context, own.step_end)
            if self.rank == 0 and (note := self.barrier_note) is not None:
                warnings.warn(note, stacklevel=2)
            self._held = held.pop_all()

    @classmethod
    def from_source(
        cls,
        program: Program,
        source: ModelSource,
        *,
        train: bool = True,
        place: Place | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """The pipeline of ``source``, cut as the program is; without ``train`` no optimizer
        steps. What ``options`` say goes before what the source does. ``place``: moves a stage's
        module to where it is run."""
        count = program.schedule.problem.stages
        source = as_planned(source, program.schedule.problem.profile)
        merged: Options = {**options_of(source, count, train=train), **options}
        return cls(program, placed_stages(source, count, place), **merged)

    def _of_step(self, program: Program | None, *, update: bool) -> Prepared:
        """The program that a step runs: the pipeline's, or the step's own, in place of the last
        such one; all ranks call it."""
        with self.together():
            if program is not None and not isinstance(program, Program):
                raise InputError(f"program: expected a Program, got {type(program).__name__}")
            if not self._first.over:
                self._first.agree(program or self.program, given=program is not None, update=update)
        if program is None or same(self.program, program):
            return self._own
        if self._given is None or not same(self._given.context.program, program):
            self._given = self._prepared(program)
        return self._given

    def _prepared(self, program: Program) -> Prepared:
        """A step's own program, made ready in place of the last such one, with the pipeline's
        connections where they serve; all ranks call it."""
        self.finish()  # until then ranks may know the loss scale unlike each other
        before = replace(self._own.context, buffers=self._buffers)
        own = before.options.optimizer
        optimizer = None if own is None else taken_over(self.optimizers.values())
        options = replace(before.options, optimizer=optimizer, loss_scale=self._state.loss_scale())
        with ExitStack() as held:
            with options.made_together():
                context = context_after(before, program, options, held)
                given = Prepared(context, held, self.finish, starts=False)
            last, self._given_held = self._given_held, held.pop_all()
        given.setup.follow((self._given or self._own).setup)
        last.close()
        return given

    def _release(self) -> None:
        """Gives back the connections, first those of a step's own program."""
        self._given_held.close()
        self._held.close()

    def _take_turn(self, ran: Prepared) -> None:
        """Goes on from what the last step left, where another program ran it."""
        if ran is not self._last:
            self._validate()
            ran.step_end.follow(self._last.step_end)
            self._last = ran

    def _validate(self) -> None:
        """Waits for the verdict on the last step, if it is to come."""
        with ending_together(self._last.context.transport):
            try:
                self._last.step_end.validate()
            except Exception as error:
                raise ExecutionError(
                    f"rank {self.rank}: finish, which all ranks call after the same step, waits "
                    f"for the verdict on it: {type(error).__name__}: {error}"
                ) from error

    @staticmethod
    def _refill(ran: Prepared, data: StepData) -> None:
        """Fills the cells again, before the ops since the step's begin are run again."""
        store = ran.context.store
        ran.setup.clear()
        ran.inputs.put(data)
        if not store.resident:
            ran.setup.gather()
            store.begin()

    def finish(self) -> None:
        """Returns once the last step is final and all that was queued on the device is done.

        With post-validation all ranks call it, after the same step; it comes by itself before a
        ``state_dict`` of a stage or an optimizer is made, which all ranks then do.
        """
        self._take_turn(self._own)
        self._validate()
        self.synchronize()

    def barrier(self) -> None:
        """Returns once all ranks have called it: call it before a step whose trace is compared."""
        with self.together():
            self._transport.barrier()

    def close(self) -> None:
        """Finishes, and gives back the connections between the ranks, and stages to their
        ``fully_shard``.

        All ranks call it.
        """
        self.finish()
        self._release()

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state, for ``torch.distributed.checkpoint``; all ranks call it.

        ``model``: parameters and persistent buffers by the model's names, a tied parameter under
        each of its names; ``optimizer``: ``state.NAME.exp_avg`` and ``param_groups.NAME.lr``, say,
        as ``flatten_optimizer_state_dict`` has them, NaN throughout where a parameter was never
        stepped; ``loss_scale``, if there is one. Tensors are the pipeline's own: what is loaded
        into them is there, :meth:`load_state_dict` has to be called all the same. The last step is
        finished first. What several ranks have they give alike, under any placement: buffers become
        those of the first replica, and there of the first rank that runs the stage, on all of
        them, so with buffers the ranks of all replicas call it.

        Raises, on all ranks, InputError where gradients add up (after ``update=False``), different
        parameters have one name (see ``names``), ``names`` raises, plain tensors are shards, or an
        optimizer (LBFGS) does not step each parameter by itself; goes on afterwards.
        """
        self.finish()
        with self.together():
            return self._state.get()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what :meth:`state_dict` gave, of this rank's stages or of all; all ranks call
        it.

        Sections that are not in ``state`` stay as they are; gradients that add up are dropped.
        Raises InputError on all ranks, and changes nothing, for missing or unknown names, other
        shapes, and sections that are no mappings.
        """
        self.finish()
        with self.together():
            self._state.put(state)

    def synchronize(self) -> None:
        """Returns once all that was queued on the device is done; at once on a CPU."""
        Device(self.device).synchronize()

    def gather(self, value: Any) -> list[Any]:
        """The values that the ranks passed, in their order; all ranks call it."""
        with self.together():
            return self._transport.gather(value)

    def together(self) -> AbstractContextManager[None]:
        """A context for collectives of the caller's: an exception within ends all ranks, which
        raise it with the rank that it is of."""
        return ending_together(self._transport)

    @property
    def barrier_note(self) -> str | None:
        """A line where all ranks wait for the norm of all gradients before they step, and the
        schedule was made for ranks that do not; else None."""
        waits = self._own.context.waits_for_norm
        return made_without_barrier(self.program.schedule) if waits else None
