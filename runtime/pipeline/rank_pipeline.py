"""The part of the class ``Pipeline`` that is not about steps: creation, state, measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Self

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule

from ..device import Device
from ..errors import ExecutionError
from ..executor.executor import Executor
from ..measure.trace import measured_schedule
from ..probes.measuring import check_numbers
from ..probes.stage_probe import Asked
from ..rank.loss_scale import LossScale
from ..rank.options import PipelineOptions
from ..stages.store import Stage
from ..tensors.microbatches import Batch
from ..transport import clock_offset, ending_together
from .agreement import FirstStep, same
from .in_place import StagesInPlace
from .layered_source import as_planned
from .model_source import ModelSource, Place, options_of, placed_stages
from .preparation import context_after, context_of
from .state import PipelineState
from .step_inputs import StepData
from .steps.evaluation import Evaluation
from .steps.prepared import Prepared


class RankPipeline:
    """The base class of :class:`Pipeline`: everything on one rank except running steps."""

    def __init__(
        self,
        program: Program,
        stages: Mapping[int, Stage] | Sequence[Stage],
        **options: Any,
    ) -> None:
        given, problem = PipelineOptions(**options), program.schedule.problem
        with ExitStack() as held:
            with given.made_together():
                context = context_of(program, stages, given, held)
                own = Prepared(context, held, self.finish)
                self._evaluation = Evaluation(own)
            self.program, self.device, self.store = program, context.device, context.store
            self.num_stages, self.microbatches = problem.stages, problem.microbatches
            self.rank, self._transport = context.role.rank, context.transport
            self.modules, self.optimizers = own.step_end.modules, own.step_end.optimizers
            # own: the pipeline's program; given: the last program that was given to a step;
            # last: the program whose step end has the current state; ran: that of the last step
            self._own = self._last = self._ran = own
            self._given: Prepared | None = None
            self._given_held = ExitStack()
            self._state = PipelineState(context, own.step_end)
            self._first = FirstStep(context, own.step_end)
            self._held = held.pop_all()

    @classmethod
    def from_source(
        cls,
        program: Program,
        source: ModelSource,
        *,
        train: bool = True,
        place: Place | None = None,
        **options: Any,
    ) -> Self:
        """Creates the pipeline of ``source``, cut into the stages of the program's profile.

        With ``train`` False, there is no optimizer. ``place``: the function that creates the module
        of a stage on the rank that runs it, given the stage and its index; by default the stage
        itself. ``options``: see :class:`Pipeline`; they override those that the source defines.
        """
        count = program.schedule.problem.stages
        source = as_planned(source, program.schedule.problem.profile)
        merged: dict[str, Any] = {**options_of(source, count, train=train), **options}
        return cls(program, placed_stages(source, count, place), **merged)

    def _of_step(self, program: Program | None, *, update: bool) -> Prepared:
        """Returns everything that a step needs to run ``program``; None: the pipeline's own one.

        What was prepared for a program given to an earlier step is reused for an equal program, and
        closed for a different one (other than the pipeline's own). In the first step, compares the
        ranks' arguments, among them ``update``. All ranks call it.
        """
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
        """Prepares ``program``, which was given to a step; all ranks call it.

        It uses the pipeline's connections if it needs the same ones. Closes the connections of the
        last different program that was given to a step.
        """
        self.finish()  # before that, ranks may have different loss scales
        before = self._own.context
        options = replace(before.options, loss_scale=self._state.loss_scale())
        with ExitStack() as held:
            with options.made_together():
                context = context_after(before, program, options, held)
                given = Prepared(context, held, self.finish, before=self._own)
            last, self._given_held = self._given_held, held.pop_all()
        last.close()
        return given

    def _take_turn(self, ran: Prepared) -> None:
        """Gives ``ran``, the program of the next step, the state after another program's last step.

        The state is the loss scale, and whether gradients are accumulated. With post-validation,
        first waits until it is known whether that step was right.
        """
        self._validate()
        ran.step_end.follow(self._last.step_end)
        self._last = ran

    def _validate(self) -> None:
        """Waits for the verdict on the last step, if it is pending (with post-validation).

        If the optimizer step was wrong, it is corrected.
        """
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
        """Fills the cells with the current step's data again, so that its ops can be repeated."""
        store = ran.context.store
        ran.clear()
        ran.inputs.put(data)
        if not store.resident:
            ran.gather()
            store.begin()

    def finish(self) -> None:
        """Waits until the last step is final and all work queued on the device is done.

        With post-validation, the optimizers step before the norm of all gradients is known; the
        step is final once it is known and wrong updates have been repeated. Then all ranks must
        call ``finish`` after the same step. As ``state_dict`` of a stage's module or an optimizer
        calls it, all ranks must then call that as well.
        """
        if self._own is not self._last:
            self._take_turn(self._own)
        self._validate()
        self.synchronize()

    def barrier(self) -> None:
        """Waits until all ranks have called it, for example to start a step at the same time."""
        with self.together():
            self._transport.barrier()

    def close(self) -> None:
        """Finishes the last step, closes the pipeline's connections and restores the stages.

        Stages wrapped in ``fully_shard`` then gather and reduce by themselves again. All ranks call
        it; afterwards the pipeline cannot be used.
        """
        self.finish()
        self._given_held.close()
        self._held.close()

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state for ``torch.distributed.checkpoint``; all ranks call it.

        ``model``: parameters and persistent buffers by their names in the model; a tied parameter
        is listed under each of its names. ``optimizer``: entries like ``state.NAME.exp_avg`` and
        ``param_groups.NAME.lr``, as with ``flatten_optimizer_state_dict``; NaN for parameters that
        were never stepped. ``loss_scale``: the keys ``scale`` and ``good``, if losses are scaled.

        The tensors share memory with the pipeline's, so loading into them in place takes effect;
        :meth:`load_state_dict` must still be called. The last step is finished first
        (:meth:`finish`). An entry that several ranks have is equal on all of them: all copies of a
        buffer are set to that of the first rank that runs the stage, in the first replica. So if
        there are buffers, the ranks of all replicas must call it.

        Raises InputError on all ranks if gradients are accumulated (after ``update=False``), if
        different parameters have one name (see ``names``), if ``names`` raises, if plain tensors
        are shards, or if an optimizer (LBFGS) has no state per parameter. The pipeline remains
        usable.
        """
        self.finish()
        with self.together():
            return self._state.get()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a result of :meth:`state_dict`, or several joined: at least this rank's entries.

        All ranks call it. Sections missing in ``state`` stay unchanged; accumulated gradients are
        dropped. Raises InputError on all ranks, without any change, if a name is missing or unknown
        in the model, a shape differs, or a section is not a mapping.
        """
        self.finish()
        with self.together():
            self._state.put(state)

    def synchronize(self) -> None:
        """Waits until all work queued on the device is done; returns immediately on a CPU."""
        Device(self.device).synchronize()

    def gather(self, value: Any) -> list[Any]:
        """Returns the values that the ranks passed, in rank order; all ranks call it."""
        with self.together():
            return self._transport.gather(value)

    def together(self) -> AbstractContextManager[None]:
        """Returns a context in which the caller may run collectives of its own between the ranks.

        If one rank raises inside it, the waits of all other ranks end, and they raise the same
        error, whose message names that rank.
        """
        return ending_together(self._transport)

    def profile(
        self,
        *inputs: Batch,
        target: Batch | None = None,
        repeats: int = 10,
        warmup: int = 2,
        in_flight: int | None = None,
        recompute: bool = False,
        loss_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Measurement:
        """Measures the pipeline's stages as they are, on the data of a step; returns their profile,
        with the spread of the measured times.

        All processes of the mesh call it between steps, with the arguments of :meth:`step`. After
        ``warmup`` rounds that do not count, each process runs its stages in ``repeats`` rounds,
        each with the first ``in_flight`` microbatches (by default, the number of ranks): F, B, W,
        BW and, with ``recompute``, R. Memory is per device: a sharded tensor counts with
        the shards on it. Parameters, gradients, buffers and random states are restored.

        The measurements of all processes of torch.distributed are joined into one profile with
        links: samples of the same stage are pooled, and bytes are the maximum over devices. If the
        pipeline was given a ``transport``, only its ranks are joined.

        Raises InputError for invalid settings or a program that sends weights, and the errors of
        :meth:`step`.
        """
        microbatches = in_flight or self.program.schedule.problem.ranks
        asked = Asked(microbatches, recompute=recompute, repeats=repeats, warmup=warmup)
        check_numbers(repeats=repeats, warmup=warmup, in_flight=in_flight)
        return self.measured(asked, StepData(inputs, options, target, loss_kwargs or {}))

    def measured(self, asked: Asked, data: StepData) -> Measurement:
        """Returns the result of :meth:`profile` for the settings ``asked`` and a step's ``data``.

        All ranks call it.
        """
        if self.program.schedule.transfers:
            raise InputError("profile: expected a program that sends activations, not weights")
        self.finish()
        own = self._own
        with self.together():
            own.inputs.put(data)
            own.gather()
            stages = StagesInPlace(own, asked)
            found = stages.measure()
        own.clear()
        return found

    def marks(self) -> list[float]:
        """Returns the start and end of this rank's ops in the last step, alternating.

        They are seconds of this process's ``time.perf_counter``. Raises InputError if no step has
        run.
        """
        return self._executor().clock.seconds()

    def gather_trace(self, marks: Sequence[float] | None = None) -> Schedule:
        """Returns the last step of all ranks as a schedule with measured times (milliseconds).

        All times are on one clock, from the start of the first op on any rank.
        ``timing.peak_memory``: each rank's peak bytes of activations in the last step. ``marks``:
        the result of :meth:`marks` after an earlier step, to get the times of that step. All ranks
        call it.
        """
        offset, ops = clock_offset(self._transport), self._executor().ops
        own = [mark + offset for mark in marks or self.marks()]
        rows = self._transport.gather((ops, own, self.peak_memory))
        return measured_schedule(self._ran.context.program.schedule, rows)

    @property
    def grad_norm(self) -> float | None:
        """The norm of all gradients in the last step, before clipping.

        None if neither clipping nor loss scaling needs it. With post-validation, the norm of a step
        becomes known only during the next one or in :meth:`finish`; before that, this is the norm
        of the step before the last.
        """
        return self._ran.step_end.norm

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale of the next step; None if losses are not scaled."""
        return self._last.step_end.loss_scale

    @property
    def peak_memory(self) -> int:
        """Peak bytes of activations on this rank in the last step; 0 if ``memory`` is False."""
        return self._ran.context.memory.peak

    @property
    def device_peak(self) -> int | None:
        """Peak bytes in use by torch's CUDA allocator; None on other devices.

        It is the peak since the allocator's statistics were last reset, usually never.
        """
        return Device(self.device).peak_memory()

    @property
    def eager_stages(self) -> dict[int, str]:
        """This rank's stages that run as modules although graphs were requested.

        Maps each of these stages to the reason. Complete after the first step.
        """
        found = {s: runner.refusal for s, runner in self._own.graphed.items()} | self._own.never
        return {s: why for s, why in found.items() if why is not None}

    def _executor(self) -> Executor:
        """Returns the executor of the last step. Raises InputError if there was no step."""
        if self._ran.executor is None:
            raise InputError("trace: no step has run yet")
        return self._ran.executor
