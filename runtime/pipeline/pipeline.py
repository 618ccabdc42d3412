"""The public pipeline: a program, the stages that it runs, and ``step``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Unpack

import torch.distributed as dist
from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.measured_profile import Measurement
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.model.weight_coverage import WeightCoverage

from ..device import Device
from ..errors import ExecutionError
from ..measure.plan_deviation import made_without_barrier
from ..measure.trace import TracedOp, measured_schedule, traced_ops
from ..optim.optimizer_step import finish_before_state_dicts
from ..optim.optimizers import taken_over
from ..optim.step_end import StepEnd
from ..probes.measurement_program import Asked
from ..probes.measuring import check_numbers, check_view
from ..rank.checks import check_exchange, check_tied
from ..rank.context import RankContext
from ..rank.loss_scale import LossScale
from ..rank.options import Options, PipelineOptions
from ..rank.role import RankRole, rank_in
from ..stages.store import Stage, stage_modules
from ..stages.streamed_weights import StreamedStages
from ..tensors.microbatches import Batch
from ..tensors.receive_buffers import ReceiveBuffers
from ..transport import GroupTransport, ReplicaFaults, ending_together
from .first_step import FirstStep
from .in_place import StagesInPlace
from .layered_source import as_planned
from .model_source import ModelSource, checked_stages, options_of
from .preparation import check_given, connected, device_for, store_for, with_ties
from .state import PipelineState
from .step_programs import StepPrograms
from .steps.forward_rounds import ForwardRounds
from .steps.step_io import StepData
from .steps.training_step import TrainingStep


class Pipeline:
    """One rank of a compiled program, ready to train.

    Every rank makes one, with the same program, and calls :meth:`step` as often as the others::

        pipeline = Pipeline(program, {0: first, 3: last}, loss=cross_entropy, optimizer=Adam)
        losses = []
        pipeline.step(tokens, target=labels, losses=losses)

    Arguments:
        program: what ``compile_schedule`` made or ``ir.formats.load_program`` read.
        stages: the modules of the stages that this rank runs, by stage; or a sequence of all
            stages, or of this rank's. A callable makes its module where it is needed. A stage
            takes what the one before it gives, a tensor or a tuple of them, as its arguments (the
            first one takes what ``step`` is given). Where weights are streamed
            (``docs/weight-passing.md``) a rank needs all stages that it runs, owns or passes on.
        loss: ``loss(output, target)``, the mean over one microbatch, or a tuple of it and metrics;
            or ``"model"`` where the last stage's module computes it: it then returns a scalar, an
            output with one as ``loss`` (as Hugging Face's do), or a tuple that begins with one.
        scale_grads: gradients are those of the mean over all microbatches; False: of the sum.
        optimizer: makes the optimizer of one stage's parameters, as ``torch.optim.SGD`` with its
            options bound does. Gradients are then cleared when a step begins. Without it, they add
            up and the caller steps.
        tied: groups of (stage, parameter name) that are one parameter. Those that a rank sees to be
            one, as stages that it was given have one object, are tied without being named.
        skips: pairs of stages (i, j): of each, i returns one tensor more, in their order, which is
            the last argument of j; see :mod:`pipeloom.runtime.tensors.skip_connections`.
        programs: makes the program of another number of microbatches, of one family say, once each,
            when ``step`` is first asked for so many; with its stages on the same ranks.
        names: what a parameter or buffer of a stage is called in the whole model, a function of
            stage and name, for :meth:`state_dict`; by default as in the stage.
        varying_shapes: let shapes be others in each step; all ranks then begin a step by telling
            each other. Microbatches of one step may differ in any case.
        param_dtype: the dtype that parameters and floating inputs are cast to for computing, and in
            which weights are sent; the modules keep theirs outside of ``step``, and so do the
            optimizers and the loss (mixed precision). By default the parameters' own.
        reduce_dtype: the dtype of gradients that are sent, or summed over ranks; by default that
            of ``param_dtype``. Each rank's sums have the parameters' own.
        clip_grad_norm: the most that the norm of all gradients may be before the optimizers step,
            as for ``torch.nn.utils.clip_grad_norm_``; None: any. A step with NaN or Inf in it is
            skipped.
        norm_groups: where parameters are shards that are no DTensors (tensor or expert parallelism
            of your own), patterns of their names in a stage, as for :func:`fnmatch.fnmatchcase`,
            and of each the process group that has the shards: ``{"*.experts.*":
            mesh["ep"].get_group()}``. Over it their squares are summed; all others count once.
            Asked for where pipelines run side by side that are no replicas in ``data_group`` and
            steps are judged by a norm; ``{}``: nothing is a shard.
        loss_scale: what losses are multiplied by before, and gradients divided by after the
            backward passes; steps with NaN or Inf are skipped, too, and the scale adapts.
        post_validation: with either of these two all ranks wait for each other before they step,
            unless the program relays norms (``compile_schedule(..., post_validation=True)``): then
            they step ahead, and again where that was wrong. False: they wait all the same.
        stages_as: ``"eager"`` runs modules as they are; ``"aten"`` each stage as graphs of F, B
            and W, which are traced before the first step and run without autograd, with the same
            gradients bit by bit; ``"inductor"`` these graphs compiled (``docs/graphs.md``). A stage
            that cannot be a graph runs as it is: :attr:`eager_stages` says why.
        group: the process group whose ranks are the program's; by default all processes. Where
            pipelines run side by side, all processes make theirs at the same time.
        data_group: the process group of those that have this rank in the replicas of the pipeline
            (``mesh["dp"].get_group()`` where ``group`` is ``mesh["pp"].get_group()``), over which a
            program compiled with ``data_parallel`` averages gradients. All start as the first, but
            for stages wrapped in ``fully_shard`` over it, of which each has its shards, and experts
            (DTensors over it, or named in ``norm_groups`` with it), which are each one's own.
        transport: the connections of all ranks, instead of the process group's: an object with the
            methods of :class:`~pipeloom.runtime.transport.Transport`, beside which the pipeline
            opens its own (:meth:`~pipeloom.runtime.transport.Transport.beside`). It stays open.
        device: where received tensors live; by default where the parameters do.
        timeout: seconds that a message or a reduction may take.
        memory: count live activation bytes
            (:class:`~pipeloom.runtime.measure.activation_ledger.Ledger`).
        pace: let each op take at least its time in the program's profile, asleep for the rest, as
            on devices of that speed: where ranks share cores, an op would otherwise be the faster
            the more of the others are idle. On a CPU only.
        verify: check the program first, by the verifier that trusts no compiler.
        check: ask when the pipeline is made and in its first step whether all ranks and replicas
            have the same program, options, parameters (names, shapes, dtypes, which of them are
            trained), microbatches and ``update``. Later steps ask nothing, except that all
            ranks compare a program that is new.

    Raises InvalidScheduleError where the program breaks the rules (a swapped receive, say), and
    InputError where it does not fit the processes, the stages or the ties, or where program, ties,
    dtypes or clipping are not the same on all ranks. What one rank raises all raise, with whose it
    is; and ExecutionError where a rank dies meanwhile, or does not make its own within ``timeout``.
    """

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
        self._turn: list[Pipeline] = []  # of several with these stages the one that stepped last
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
        self._step_end = StepEnd(context, starts=starts)
        held.callback(self._step_end.close)
        self.modules, self.optimizers = self._step_end.modules, self._step_end.optimizers
        self._options = options
        self._training = TrainingStep(context, self._step_end)
        self._forward_rounds = ForwardRounds(context, self._training.runners, self._step_end)
        self._state = PipelineState(context, self._step_end)
        self._programs = StepPrograms(FirstStep(context, self._step_end), options.programs)
        self._other: Pipeline | None = None  # the one that ran the last step, where not this one
        self._buffers = ReceiveBuffers(self.device)  # of steps with programs of their own
        if context.relays:
            asked = self.modules.values(), self.optimizers.values()
            for hook in finish_before_state_dicts(self.finish, *asked):
                held.callback(hook.remove)

    def with_program(self, program: Program) -> Pipeline:
        """A pipeline by another program, for another number of microbatches say, with the stages,
        optimizers and options of this one; all ranks call it.

        Steps of both may follow each other in any order: gradients that add up, the loss scale and
        a verdict that is to come are theirs in common. ``close`` of this one closes the other.

        Raises InputError for a program that has its stages on other ranks, sends weights where this
        one's does not (or the reverse) or steps after each microbatch.
        """
        other = self._beside(program)
        self._held.callback(other._release)
        return other

    def _beside(self, program: Program, before: RankContext | None = None) -> Pipeline:
        """The pipeline of another program; with the connections of ``before`` where they serve."""
        self.finish()  # until then ranks may know the loss scale unlike each other
        own = self._options.optimizer
        optimizer = None if own is None else taken_over(self.optimizers.values())
        scale = self._state.loss_scale()
        options = replace(self._options, optimizer=optimizer, loss_scale=scale, programs=None)
        with options.made_together():
            check_given(program, options)
            check_exchange(self.program, program)
            check_tied(program, options.tied)
        self._turn[:] = [self]
        other = object.__new__(Pipeline)
        other.program, other.num_stages, other.rank = program, self.num_stages, self.rank
        other.device, other.store, other._turn = self.device, self.store, self._turn
        if isinstance(self.store, StreamedStages):
            other.store = self.store.by(program.schedule, self.rank)
        other._replicas = self._replicas
        with ExitStack() as held:
            with options.made_together():
                role = RankRole.of(program, self.rank)
                other._open(role, options, held, starts=False, before=before)
            other._held = held.pop_all()
        return other

    @classmethod
    def from_source(
        cls,
        program: Program,
        source: ModelSource,
        *,
        train: bool = True,
        **options: Unpack[Options],
    ) -> Pipeline:
        """The pipeline of ``source``, cut as the program is; without ``train`` no optimizer
        steps. What ``options`` say goes before what the source does."""
        count = program.schedule.problem.stages
        source = as_planned(source, program.schedule.problem.profile)
        merged: Options = {**options_of(source, count, train=train), **options}
        return cls(program, checked_stages(source, count), **merged)

    def step(
        self,
        *inputs: Batch,
        target: Batch | None = None,
        losses: list[Tensor] | None = None,
        metrics: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: Mapping[str, Any] | None = None,
        microbatches: int | None = None,
        program: Program | None = None,
        update: bool = True,
        **options: Any,
    ) -> Any:
        """One training step: all microbatches forward and backward, the reduction, the optimizer.

        ``inputs``: the first stage's arguments, needed on the ranks that run it; ``target``: the
        loss's, needed on those of the last one (keyword arguments of the last stage where the model
        computes its loss); ``options``: keyword arguments for all stages of this rank. Each is a
        whole batch, of which tensors, also in dicts and tuples, are cut along dimension 0 and all
        else is given to each microbatch; or a list of M microbatches, which may differ in shape.
        ``loss_kwargs``: keyword arguments of the loss, the same for each microbatch.

        On the last stage's rank the output of the whole batch is returned (as a list of the
        microbatches' where they do not fit together), unless ``return_outputs`` is off, which saves
        keeping it; ``losses`` becomes the list of the microbatches' losses, ``metrics`` of what the
        loss returned with them, detached; elsewhere None, and empty lists.

        ``microbatches``, alike on all ranks: how many there are instead of M, where there are
        ``programs``. :meth:`trace`, ``peak_memory`` and such are then of that step's program.

        ``program``, alike on all ranks: what this step runs instead, of any number of microbatches,
        as :meth:`with_program` would, with the connections and buffers of the one before it. It is
        kept until a step is given another.

        ``update``, alike on all ranks: False leaves the gradients for the next step to add to;
        neither are they clipped nor do the optimizers step.

        Raises InputError for what is missing, ShapeError where shapes do not fit, ExecutionError
        where an instruction fails, or gathering sharded stages; on the other ranks, at once, the
        error of the first that failed.
        """
        data = StepData(inputs, options, target, loss_kwargs or {})
        ran = self
        if program is not None or microbatches is not None or not self._programs.agreed:
            asked = program, microbatches
            ran = self._programs.of_step(self, self._instead, *asked, update=update)
        self._other = None if ran is self else ran
        with ending_together(ran._transport):
            ran._training.put(data, updates=update)
            ran._take_turn()
            results = ran._training.run(data, keep=return_outputs, updates=update)
        return results.hand_out(losses, metrics)

    def eval(
        self,
        *inputs: Batch,
        target: Batch | None = None,
        losses: list[Tensor] | None = None,
        metrics: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: Mapping[str, Any] | None = None,
        microbatches: int | None = None,
        **options: Any,
    ) -> Any:
        """The forwards alone, without gradients and in evaluation mode, of any number of
        microbatches; all ranks call it.

        Arguments are those of :meth:`step`, and so is what is returned. Lists have as many
        microbatches as there are to evaluate, which need not be M: they run in rounds of M. Whole
        batches are cut into ``microbatches``, as long as some rank's list is, or into M. Without
        ``target`` no losses are computed, and no loss is needed.

        Training goes on as if there had been no evaluation, bit for bit: modes of modules, buffers,
        random numbers, gradients that add up and the trace of the last step are as before. With
        post-validation the last step is final first, as :meth:`finish` makes it.

        Raises, on all ranks, InputError or ShapeError for what any of them was given, and goes on
        afterwards; ExecutionError where an instruction fails.
        """
        self.finish()
        data = StepData(inputs, options, target, loss_kwargs or {})
        with ending_together(self._transport):
            results = self._forward_rounds.run(
                data, microbatches, wants_losses=losses is not None, keep_outputs=return_outputs
            )
        return results.hand_out(losses, metrics)

    def profile(
        self,
        *inputs: Batch,
        target: Batch | None = None,
        repeats: int = 10,
        warmup: int = 2,
        in_flight: int | None = None,
        recompute: bool = False,
        view: str = "all",
        loss_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Measurement:
        """The profile of these stages, measured where they are, by their program's microbatches.

        All processes of the mesh call it between steps, with what :meth:`step` is given. Each runs
        its stages ``repeats`` times after ``warmup``, ``in_flight`` microbatches each (by default
        as many as there are ranks): F, B, W, BW, and with ``recompute`` R. Memory is that of one
        device: of tensors that are shards, its own. Parameters, gradients, buffers and random
        numbers are as before afterwards.

        ``view``: ``all`` joins what all processes of torch.distributed measured (samples of one
        stage together, the most bytes of any device) into one profile, with links; ``pipeline``
        what the ranks of this one did; ``rank`` is of this rank's stages alone, in their order,
        waits for no other result, and has no links.

        Raises InputError for impossible settings, or a program that sends weights; else as step.
        """
        microbatches = in_flight or self.program.schedule.problem.ranks
        asked = Asked(microbatches, recompute=recompute, repeats=repeats, warmup=warmup)
        check_view(view)
        check_numbers(repeats=repeats, warmup=warmup, in_flight=in_flight)
        return self.measured(asked, StepData(inputs, options, target, loss_kwargs or {}), view)

    def measured(self, asked: Asked, data: StepData, view: str = "all") -> Measurement:
        """The profile that :meth:`profile` measures on a step's ``data``."""
        if self.program.schedule.transfers:
            raise InputError("profile: expected a program that sends activations, not weights")
        self.finish()
        with ending_together(self._transport):
            self._training.put(data)
            self._training.gather()
            stages = StagesInPlace(self._context, self._step_end, self._training, asked)
            found = stages.measure(view)
        self._training.clear()
        return found

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

    def finish(self) -> None:
        """Returns once the last step is final and all that was queued on the device is done.

        With post-validation all ranks call it, after the same step; it comes by itself before a
        ``state_dict`` of a stage or an optimizer is made, which all ranks then do.
        """
        with ending_together(self._transport):
            self._take_turn()
            if self._step_end.update.pending:
                self._validate()
        self.synchronize()

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

    def marks(self) -> list[float]:
        """Start and end of each op of the last step, in turn: seconds on this rank's clock."""
        return self._ran._training.ran().clock.seconds()

    def trace(self) -> list[TracedOp]:
        """This rank's ops in the last step: op, start and end in milliseconds from the first's."""
        return traced_ops(self._ran._training.ran().ops, self.marks())

    def averages(self) -> dict[int, tuple[float, float]]:
        """Start and end of each stage's averaging over the replicas in the last step: seconds on
        this rank's clock.

        Empty without replicas, and on a GPU.
        """
        return dict(self._ran._step_end.averages)

    def gather_trace(
        self,
        marks: Sequence[float] | None = None,
        averages: Mapping[int, tuple[float, float]] | None = None,
    ) -> Schedule:
        """The last step as a schedule with measured times, on one clock; all ranks call it.

        ``marks`` and ``averages`` are those of an earlier step; with marks alone no averages are
        told. ``timing.peak_memory`` is in bytes, each rank's count in the last step.
        """
        offset = self._transport.clock_offset()
        seconds = [mark + offset for mark in (self.marks() if marks is None else marks)]
        if averages is None:
            averages = self.averages() if marks is None else {}
        spans = {stage: (start + offset, end + offset) for stage, (start, end) in averages.items()}
        ops = self._ran._training.ran().ops
        rows = self._transport.gather((ops, seconds, self.peak_memory, spans))
        return measured_schedule(self._ran.program.schedule, rows)

    @property
    def coverage(self) -> dict[int, WeightCoverage]:
        """The weight gradients that W computed in the first step, of each stage of this rank that
        has W's; before that step none.

        It prints as ``W computes 99.6 % of stage 1's gradients; in B: norm.weight``: those
        parameters' gradients are not put off.
        """
        return dict(self._training.runners.coverage)

    @property
    def grad_norm(self) -> float | None:
        """The norm of all gradients of the last step before they were clipped.

        None where nothing needs it. With post-validation that of the last step whose verdict has
        come: the one before the last, until :meth:`finish`.
        """
        found = self._ran._step_end.update.global_norm
        return None if found is None else found.norm

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale of the next step; None without."""
        (last,) = self._turn or (self,)
        return last._step_end.update.loss_scale

    @property
    def peak_memory(self) -> int:
        """Bytes of activations held at most during the last step; 0 where they are not counted."""
        return self._ran._memory.peak

    @property
    def device_peak(self) -> int | None:
        """Bytes that torch's allocator had in use at most, on a CUDA device."""
        return Device(self.device).peak_memory()

    @property
    def graphs(self) -> int:
        """How many graphs of this rank's stages were made: one per stage and kind of arguments, all
        of them before the first step unless shapes vary or a stage changes."""
        return self._training.runners.graphs

    @property
    def graph_functions(self) -> int:
        """How many functions of graphs this rank made or compiled: F, B and W of a stage say. After
        the first step there are no more of them, unless :attr:`remade_graphs` says why."""
        return self._training.runners.functions

    @property
    def remade_graphs(self) -> dict[int, str]:
        """The stages of this rank whose graphs were made again after the first step, with the
        shapes that it was for."""
        return self._training.runners.remade

    def tell_graphs(self, tell: Callable[[int, int], object]) -> None:
        """Lets ``tell`` be called with each function of a graph that is made or compiled: how many
        there are on this rank, of how many of the program."""
        self._training.runners.tell_made(tell)

    @property
    def eager_stages(self) -> dict[int, str]:
        """The stages of this rank that were to be graphs and run as they are, with why; known after
        the first step."""
        return self._training.runners.refusals

    @property
    def barrier_note(self) -> str | None:
        """A line where all ranks wait for the norm of all gradients before they step, and the
        schedule was made for ranks that do not; else None."""
        return made_without_barrier(self.program.schedule) if self._context.waits_for_norm else None

    @property
    def _ran(self) -> Pipeline:
        """The pipeline that ran the last step: this one, or that of another number."""
        return self if self._other is None else self._other

    def _instead(self, last: Pipeline | None, program: Program) -> Pipeline:
        """The pipeline of a step's own program, in place of the last such one's; all ranks call
        it."""
        new = self._beside(program, replace(self._context, buffers=self._buffers))
        new._training.follow((last or self)._training)
        if last is not None:
            last._held.close()
        return new

    def _release(self) -> None:
        """Gives back the connections, first those of a step's own program."""
        if self._programs.given is not None:
            self._programs.given._held.close()
        self._held.close()

    def _take_turn(self) -> None:
        """Goes on from what the last step left, where another pipeline with these stages ran it."""
        for last in self._turn:
            if last is not self:
                last.finish()
                self._step_end.follow(last._step_end)
        self._turn[:] = [self] * len(self._turn)

    def _validate(self) -> None:
        try:
            self._step_end.update.validate()
        except Exception as error:
            raise ExecutionError(
                f"rank {self.rank}: finish, which all ranks call after the same step, waits "
                f"for the verdict on it: {type(error).__name__}: {error}"
            ) from error
