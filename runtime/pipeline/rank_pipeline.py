"""One rank of a program: connected, made of its stages, and given back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Self, Unpack

import torch.distributed as dist

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program

from ..device import Device
from ..errors import ExecutionError
from ..measure.plan_deviation import made_without_barrier
from ..optim.optimizer_step import JudgedStepEnd, finish_before_state_dicts
from ..optim.optimizers import taken_over
from ..optim.step_end import StepEnd
from ..rank.checks import check_exchange, check_tied
from ..rank.consistency import same
from ..rank.context import RankContext
from ..rank.options import Options, PipelineOptions
from ..rank.role import RankRole, rank_in
from ..stages.store import Stage, stage_modules
from ..stages.streamed_weights import StreamedStages
from ..tensors.receive_buffers import ReceiveBuffers
from ..transport import GroupTransport, ReplicaFaults, ending_together
from .first_step import FirstStep, StepRequest
from .layered_source import as_planned
from .model_source import ModelSource, checked_stages, options_of
from .preparation import check_given, connected, device_for, store_for, with_ties
from .state import PipelineState
from .step_arguments import StepData
from .step_inputs import StepInputs
from .steps.forward_rounds import ForwardRounds
from .steps.setup import StepSetup


class RankPipeline:
    """A rank's part of a pipeline beside its steps: its making, its state, its end."""

    def __init__(
        self,
        program: Program,
        stages: Mapping[int, Stage] | Sequence[Stage],
        **options: Unpack[Options],
    ) -> None:
        given = PipelineOptions(**options)
        self.program = program
        with ExitStack() as held:
            with given.made_together():
                self._make(program, stages, given, held)
            if self.rank == 0 and (note := self.barrier_note) is not None:
                warnings.warn(note, stacklevel=2)
            self._held = held.pop_all()

    def _make(
        self,
        program: Program,
        stages: Mapping[int, Stage] | Sequence[Stage],
        given: PipelineOptions,
        held: ExitStack,
    ) -> None:
        check_given(program, given)
        self.num_stages = program.schedule.problem.stages
        self.rank = rank_in(program, given)
        role = RankRole.of(program, self.rank)
        modules = stage_modules(stages, role.needed, self.num_stages)
        given = with_ties(given, program, stages, modules)
        self.device = device_for(given, modules)
        data_group, seconds = given.data_group, given.timeout
        self._replicas = None if data_group is None else ReplicaFaults(data_group, seconds)
        self.store = store_for(
            program, self.rank, self.device, given, modules, replicas=self._replicas
        )
        # of several pipelines with these stages the one that stepped last
        self._turn: list[RankPipeline] = []
        held.callback(self.store.close)
        self._open(role, given, held)

    def _open(
        self,
        role: RankRole,
        options: PipelineOptions,
        held: ExitStack,
        *,
        starts: bool = True,
        before: RankContext | None = None,
    ) -> None:
        """Connects and builds; one that cannot be made leaves no connections behind. ``starts``:
        the stages have not trained yet. ``before``: whose connections to use, if they serve."""
        self.microbatches = self.program.schedule.problem.microbatches
        context = connected(
            self.program,
            role,
            options,
            self.store,
            self.device,
            replicas=self._replicas,
            before=before,
        )
        self._context = context
        if before is None or context.transport is not before.transport:
            held.callback(context.transport.close)
        self._transport, self._memory = context.transport, context.memory
        kind = JudgedStepEnd if options.needs_norm else StepEnd
        self._step_end: StepEnd = kind(context, starts=starts)
        held.callback(self._step_end.close)
        self.modules, self.optimizers = self._step_end.modules, self._step_end.optimizers
        self._options = options
        self._setup = StepSetup(context, self._step_end)
        self._inputs = StepInputs(
            context, self._setup.cells, self.microbatches, varying=options.varying_shapes
        )
        self._forward_rounds = ForwardRounds(context, self._setup, self._step_end)
        self._state = PipelineState(context, self._step_end)
        self._first = FirstStep(context, self._step_end)
        self._given: RankPipeline | None = None  # of the last step with a program of its own
        self._other: Any = None  # the one that ran the last step, where not this one
        self._buffers = ReceiveBuffers(self.device)  # of steps with programs of their own
        if context.relays:
            asked = self.modules.values(), self.optimizers.values()
            for hook in finish_before_state_dicts(self.finish, *asked):
                held.callback(hook.remove)

    @classmethod
    def from_source(
        cls,
        program: Program,
        source: ModelSource,
        *,
        train: bool = True,
        **options: Unpack[Options],
    ) -> Self:
        """The pipeline of ``source``, cut as the program is; without ``train`` no optimizer
        steps. What ``options`` say goes before what the source does."""
        count = program.schedule.problem.stages
        source = as_planned(source, program.schedule.problem.profile)
        merged: Options = {**options_of(source, count, train=train), **options}
        return cls(program, checked_stages(source, count), **merged)

    def _of_step(self, program: Program | None, *, update: bool) -> Any:
        """The pipeline that runs a step: this one, or that of the step's own ``program``, in place
        of the last such one's; all ranks call it."""
        with self.together():
            if program is not None and not isinstance(program, Program):
                raise InputError(f"program: expected a Program, got {type(program).__name__}")
            if not self._first.over:
                self._first.agree(StepRequest(program or self.program, program is not None, update))
        if program is None:
            return self
        for known in filter(None, (self, self._given)):
            if same(known.program, program):
                return known
        self._given = self._instead(self._given, program)
        return self._given

    def _instead(self, last: RankPipeline | None, program: Program) -> RankPipeline:
        """The pipeline of a step's own program, in place of the last such one's, with this one's
        connections where they serve; all ranks call it."""
        self.finish()  # until then ranks may know the loss scale unlike each other
        own = self._options.optimizer
        optimizer = None if own is None else taken_over(self.optimizers.values())
        scale = self._state.loss_scale()
        options = replace(self._options, optimizer=optimizer, loss_scale=scale)
        with options.made_together():
            check_given(program, options)
            check_exchange(self.program, program)
            check_tied(program, options.tied)
        self._turn[:] = [self]
        other = object.__new__(type(self))
        other.program, other.num_stages, other.rank = program, self.num_stages, self.rank
        other.device, other.store, other._turn = self.device, self.store, self._turn
        if isinstance(self.store, StreamedStages):
            other.store = self.store.by(program.schedule, self.rank)
        other._replicas = self._replicas
        before = replace(self._context, buffers=self._buffers)
        with ExitStack() as held:
            with options.made_together():
                role = RankRole.of(program, self.rank)
                other._open(role, options, held, starts=False, before=before)
            other._held = held.pop_all()
        other._setup.follow((last or self)._setup)
        if last is not None:
            last._held.close()
        return other

    def _release(self) -> None:
        """Gives back the connections, first those of a step's own program."""
        if self._given is not None:
            self._given._held.close()
        self._held.close()

    def _take_turn(self) -> None:
        """Goes on from what the last step left, where another pipeline with these stages ran it."""
        for last in self._turn:
            if last is not self:
                last.finish()
                self._step_end.follow(last._step_end)
        self._turn[:] = [self] * len(self._turn)

    def _refill(self, data: StepData) -> None:
        """Fills the cells again, before the ops since the step's begin are run again."""
        self._setup.clear()
        self._inputs.put(data)
        if not self.store.resident:
            self._setup.gather()
            self.store.begin()

    def finish(self) -> None:
        """Returns once the last step is final and all that was queued on the device is done.

        With post-validation all ranks call it, after the same step; it comes by itself before a
        ``state_dict`` of a stage or an optimizer is made, which all ranks then do.
        """
        with ending_together(self._transport):
            self._take_turn()
            try:
                self._step_end.validate()
            except Exception as error:
                raise ExecutionError(
                    f"rank {self.rank}: finish, which all ranks call after the same step, waits "
                    f"for the verdict on it: {type(error).__name__}: {error}"
                ) from error
        self.synchronize()

    def barrier(self) -> None:
        """Returns once all ranks have called it: call it before a step whose trace is compared."""
        with ending_together(self._transport):
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
        with ending_together(self._transport):
            self._take_turn()
            return self._state.get()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what :meth:`state_dict` gave, of this rank's stages or of all; all ranks call
        it.

        Sections that are not in ``state`` stay as they are; gradients that add up are dropped.
        Raises InputError on all ranks, and changes nothing, for missing or unknown names, other
        shapes, and sections that are no mappings.
        """
        self.finish()
        with ending_together(self._transport):
            self._take_turn()
            self._state.put(state)

    def synchronize(self) -> None:
        """Returns once all that was queued on the device is done; at once on a CPU."""
        Device(self.device).synchronize()

    def gather(self, value: Any) -> list[Any]:
        """The values that the ranks passed, in their order; all ranks call it."""
        with ending_together(self._transport):
            return self._transport.gather(value)

    @property
    def own_group(self) -> dist.ProcessGroup | None:
        """The process group whose waits end where a rank fails; None where there is none."""
        return self._transport.group if isinstance(self._transport, GroupTransport) else None

    def together(self) -> AbstractContextManager[None]:
        """A context for collectives of the caller's: an exception within ends all ranks, which
        raise it with the rank that it is of."""
        return ending_together(self._transport)

    @property
    def barrier_note(self) -> str | None:
        """A line where all ranks wait for the norm of all gradients before they step, and the
        schedule was made for ranks that do not; else None."""
        return made_without_barrier(self.program.schedule) if self._context.waits_for_norm else None
