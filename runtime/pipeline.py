"""The public pipeline: a program, the stages that it runs, and ``step``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeloom.ir import program as ir
from pipeloom.ir.errors import InputError
from pipeloom.ir.ops import OpKind
from pipeloom.ir.program import Program
from pipeloom.ir.schedule import Schedule, Updates
from pipeloom.ir.travel import holders, stepping

from .agreement import check_agreement
from .arguments import Arguments
from .averaging import Averaging
from .batches import Batch, mapped, merge, split
from .carriers import Activations, Carrier
from .checks import check_judged, check_program, check_replicas
from .clock import Call
from .compute import Cell, Loss, StageRunner
from .deferral import WeightQueue
from .errors import ExecutionError
from .executor import Executor
from .loss_scale import LossScale
from .memory import Ledger, NoLedger, device_peak
from .model import ModelSource, checked_stages, skips_of
from .offload import Host, Parcel
from .optimizers import MakeOptimizer, make_optimizers
from .precision import check_floating
from .rewind import Rewind
from .roles import averaged, has_relays, passed_on, rank_in, users_of
from .shapes import Edges, Shapes
from .skips import Skips
from .stages import ResidentStages, Stage, StageStore, device_of
from .stashing import Stash, StashingRunner
from .tied import Group, SharedParameters, ranks_of, stages_of
from .tracing import TracedOp, measured_schedule, traced_ops
from .transport import Routes, connect
from .travelling import TravellingStages
from .update import Finishing, Update
from .verdict import Gathered, Relayed, Sums


class Pipeline:
    """One rank of a compiled program, ready to train.

    Every rank makes one, with the same program, and calls :meth:`step` as often as the others::

        pipeline = Pipeline(program, {0: first, 3: last}, loss=cross_entropy, optimizer=Adam)
        losses = []
        pipeline.step(tokens, target=labels, losses=losses)

    Arguments:
        program: what ``compile_schedule`` made or ``ir.files.load_program`` read.
        stages: the modules of the stages that this rank runs, by stage; or a sequence of all
            stages, or of this rank's. A callable makes its module where it is needed. A stage
            takes what the one before it gives, a tensor or a tuple of them, as its arguments (the
            first one takes what ``step`` is given). Where
            weights travel (``docs/weight-passing.md``) a rank needs all stages that it runs, owns
            or passes on.
        loss: ``loss(output, target)``, the mean over one microbatch; gradients are those of the
            mean over all microbatches.
        optimizer: makes the optimizer of one stage's parameters, as ``torch.optim.SGD`` with its
            options bound does. Gradients are then cleared when a step begins. Without it, they add
            up and the caller steps.
        tied: groups of (stage, parameter name) that are one parameter.
        skips: pairs of stages (i, j): of each, i returns one tensor more, in their order, which is
            the last argument of j; see :mod:`pipeloom.runtime.skips`.
        varying_shapes: let shapes be others in each step; all ranks then begin a step by telling
            each other. Microbatches of one step may differ in any case.
        param_dtype: the dtype that parameters and floating inputs are cast to for computing, and in
            which weights travel; the modules keep theirs outside of ``step``, and so do the
            optimizers and the loss (mixed precision). By default the parameters' own.
        reduce_dtype: the dtype of gradients that travel, or are summed over ranks; by default that
            of ``param_dtype``. Each rank's sums have the parameters' own.
        clip_grad_norm: the most that the norm of all gradients may be before the optimizers step, as
            for ``torch.nn.utils.clip_grad_norm_``; None: any. A step with NaN or Inf in it is skipped.
        loss_scale: what losses are multiplied by before, and gradients divided by after the backward
            passes; steps with NaN or Inf are skipped, too, and the scale adapts.
        post_validation: with either of these two all ranks wait for each other before they step,
            unless the program relays norms (``compile_schedule(..., post_validation=True)``): then
            they step ahead, and again where that was wrong. False: they wait all the same.
        group: the process group whose ranks are the program's; by default all processes. Where
            pipelines run side by side, all processes make theirs at the same time.
        data_group: the process group of those that have this rank in the replicas of the pipeline
            (``mesh["dp"].get_group()`` where ``group`` is ``mesh["pp"].get_group()``), over which a
            program compiled with ``data_parallel`` averages gradients. All start as the first.
        device: where received tensors live; by default where the parameters do.
        timeout: seconds that a message or a reduction may take.
        memory: count live activation bytes (see :class:`~pipeloom.runtime.memory.Ledger`).
        pace: let each op take at least its time in the program's profile, asleep for the rest, as
            on devices of that speed: where ranks share cores, an op would otherwise be the faster
            the more of the others are idle. On a CPU only.
        verify: check the program first, by the verifier that trusts no compiler.

    Raises InvalidScheduleError where the program breaks the rules (a swapped receive, say), and
    InputError where it does not fit the processes, the stages or the ties, or where program, ties,
    dtypes or clipping are not the same on all ranks.
    """

    def __init__(
        self,
        program: Program,
        stages: Mapping[int, Stage] | Sequence[Stage],
        *,
        loss: Loss | None = None,
        optimizer: MakeOptimizer | None = None,
        tied: Sequence[Group] = (),
        skips: Sequence[tuple[int, int]] = (),
        varying_shapes: bool = False,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        clip_grad_norm: float | None = None,
        loss_scale: LossScale | None = None,
        post_validation: bool = True,
        group: dist.ProcessGroup | None = None,
        data_group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        timeout: float = 300.0,
        memory: bool = True,
        pace: bool = False,
        verify: bool = True,
    ) -> None:
        check_floating(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
        alike = {
            "tied": [[tuple(pair) for pair in shared] for shared in tied],
            "skips": [tuple(pair) for pair in skips],
            "varying_shapes": varying_shapes,
            "param_dtype": param_dtype,
            "reduce_dtype": reduce_dtype,
            "clip_grad_norm": clip_grad_norm,
            "loss_scale": loss_scale,
            "post_validation": post_validation,
        }
        check_agreement(program, alike, group)
        check_program(
            program,
            verify,
            tied=tied,
            param_dtype=param_dtype,
            clip_grad_norm=clip_grad_norm,
            loss_scale=loss_scale,
        )
        self.program = program
        self.microbatches = program.schedule.problem.microbatches
        self.num_stages = program.schedule.problem.stages
        self.rank = rank_in(program, group)
        self._loss = loss
        self._users = users_of(program)
        self._holders = holders(program.schedule)
        mine = [s for s, ranks in enumerate(self._holders) if self.rank in ranks]
        passing = passed_on(program.schedule, self.rank)
        here = [s for s in range(self.num_stages) if s in mine or s in passing or self._runs(s)]
        resident = ResidentStages.of(stages, here, self.num_stages)
        found = device_of([resident.module(s) for s in here])
        self.device = found if device is None else torch.device(device)
        self.store: StageStore = resident
        if program.schedule.transfers or param_dtype is not None:
            self.store = TravellingStages(
                {s: resident.module(s) for s in here},
                program.schedule,
                self.rank,
                self.device,
                param_dtype=param_dtype,
                reduce_dtype=reduce_dtype,
            )
        self._cast = param_dtype
        self.modules = {s: self.store.module(s) for s in mine}
        if pace and self.device.type != "cpu":
            raise InputError(f"pace: expected a CPU, got {self.device}: its ops do not wait")
        self._pace = pace
        judges = clip_grad_norm is not None or loss_scale is not None
        relays = judges and post_validation and has_relays(program)
        self._transport = connect(
            self._routes(tied, timeout, judges and not relays), self.device, group
        )
        self._shared = SharedParameters(
            tied, self._holders, self.store, self._transport, reduce_dtype or param_dtype
        )
        check_replicas(program, self.rank, data_group)
        self._averaging = (
            None
            if data_group is None
            else Averaging(
                {s: self.modules[s] for s in averaged(program, self.rank)},
                data_group,
                reduce_dtype or param_dtype,
            )
        )
        self._memory = Ledger() if memory else NoLedger()
        self._stashes = self._make_stashes()
        self.optimizers = {} if optimizer is None else make_optimizers(self.modules, optimizer)
        self._seed = torch.tensor(self._share(), dtype=torch.float64, device=self.device)
        if judges:
            check_judged(program, clip_grad_norm, optimizer)
        sums = self._sums(timeout, group, relays) if judges else None
        self._update = self._updating(clip_grad_norm, loss_scale, sums, relays)
        self._batch: Call | None = None
        self._rewind: Rewind | None = None
        self._executor: Executor | None = None
        self._cells = self._make_cells()
        self._arguments = Arguments(
            self._cells, self.microbatches, param_dtype, varying=varying_shapes
        )
        self._skips = Skips(skips, self.num_stages)
        self._runners = {s: self._runner(s) for s in self.store.stages if self._runs(s)}
        placement = program.schedule.problem.placement
        self._shapes = Shapes(
            self.store,
            placement.matrix(self.num_stages, self.microbatches),
            self._skips,
            self._transport,
            self.device,
        )
        self._varying = varying_shapes
        self._edges: Edges = []

    @classmethod
    def from_source(
        cls,
        program: Program,
        source: ModelSource,
        *,
        train: bool = True,
        varying_shapes: bool = False,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        clip_grad_norm: float | None = None,
        loss_scale: LossScale | None = None,
        post_validation: bool = True,
        group: dist.ProcessGroup | None = None,
        data_group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        timeout: float = 300.0,
        memory: bool = True,
        pace: bool = False,
        verify: bool = True,
    ) -> Pipeline:
        """The pipeline of ``source``, cut as the program is; without ``train`` no optimizer steps."""
        count = program.schedule.problem.stages
        return cls(
            program,
            checked_stages(source, count),
            loss=source.loss,
            optimizer=source.optimizer if train else None,
            tied=source.tied(count),
            skips=skips_of(source, count),
            varying_shapes=varying_shapes,
            param_dtype=param_dtype,
            reduce_dtype=reduce_dtype,
            clip_grad_norm=clip_grad_norm,
            loss_scale=loss_scale,
            post_validation=post_validation,
            group=group,
            data_group=data_group,
            device=device,
            timeout=timeout,
            memory=memory,
            pace=pace,
            verify=verify,
        )

    def step(
        self,
        *inputs: Batch,
        target: Batch | None = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        **options: Any,
    ) -> Any:
        """One training step: all microbatches forward and backward, the reduction, the optimizer.

        ``inputs``: the first stage's arguments, needed on the ranks that run it; ``target``: the
        loss's, needed on those of the last one; ``options``: keyword arguments for all stages of
        this rank. Each is a whole batch, cut along dimension 0, or a list of M microbatches, which
        may differ in shape; options that are neither are given to each microbatch. On the last
        stage's rank the output of the whole batch is returned (as a list of the microbatches' where
        they do not fit together), unless ``return_outputs`` is off, which saves keeping it, and
        ``losses`` becomes the list of the microbatches' losses; elsewhere None, and an empty list.

        Raises ShapeError where shapes do not fit, ExecutionError where an instruction fails.
        """
        self._fill(inputs, options, target)
        executor = self._prepared()
        for runner in self._runners.values():
            runner.keep_outputs = return_outputs
        if self._update.pending:
            self._batch = partial(self._fill, inputs, options, target)
            self._rewind = Rewind(self.modules.values(), self.device)
        else:
            self._clear_gradients()
        self.store.begin()
        self._memory.start(map(self.store.module, self.store.stages))
        try:
            executor.run()
        except Exception:
            self._update.pending = False  # there is no verdict to wait for any more
            raise
        return self._collect(losses)

    def barrier(self) -> None:
        """Returns once all ranks have called it: call it before a step whose trace is compared."""
        self._transport.barrier()

    def close(self) -> None:
        """Finishes, and gives the connections between the ranks back; all ranks call it."""
        self.finish()
        self._update.close()
        self._transport.close()

    def finish(self) -> None:
        """Returns once the last step is final and all that was queued on the device is done.

        With post-validation all ranks call it, after the same step; it comes by itself before a
        ``state_dict`` of a stage or an optimizer is made, which all ranks then do.
        """
        if self._update.pending:
            try:
                self._update.validate()
            except Exception as error:
                raise ExecutionError(
                    f"rank {self.rank}: finish, which all ranks call after the same step, waits for the "
                    f"verdict on it: {type(error).__name__}: {error}"
                ) from error
        self.synchronize()

    def synchronize(self) -> None:
        """Returns once all that was queued on the device is done; at once on a CPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def gather(self, value: Any) -> list[Any]:
        """What each rank passed, in the order of ranks; all ranks call it."""
        return self._transport.gather(value)

    def marks(self) -> list[float]:
        """When each op of the last step started and ended, in turn: seconds on this rank's clock."""
        return self._ran().clock.seconds()

    def trace(self) -> list[TracedOp]:
        """This rank's ops in the last step: op, start and end in milliseconds from the first's."""
        return traced_ops(self._ran().ops, self.marks())

    def gather_trace(self, marks: Sequence[float] | None = None) -> Schedule:
        """The last step as a schedule with measured times, on one clock; all ranks call it.

        ``marks`` are those of an earlier step. ``timing.peak_memory`` is in bytes, each rank's
        count in the last step.
        """
        offset = self._transport.clock_offset()
        seconds = [mark + offset for mark in (self.marks() if marks is None else marks)]
        rows = self._transport.gather((self._ran().ops, seconds, self.peak_memory))
        return measured_schedule(self.program.schedule, rows)

    @property
    def grad_norm(self) -> float | None:
        """The norm of all gradients of the last step before they were clipped.

        None where nothing needs it. With post-validation that of the last step whose verdict has
        come: the one before the last, until :meth:`finish`.
        """
        verdict = self._update.verdict
        return None if verdict is None else verdict.norm

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale of the next step; None without."""
        return self._update.loss_scale

    @property
    def peak_memory(self) -> int:
        """Bytes of activations held at most during the last step; 0 where they are not counted."""
        return self._memory.peak

    @property
    def device_peak(self) -> int | None:
        """Bytes that torch's allocator had in use at most, on a CUDA device."""
        return device_peak(self.device)

    def _routes(self, tied: Sequence[Group], timeout: float, gathers: bool) -> Routes:
        channels = {
            (rank, i.target)
            for rank, row in enumerate(self.program.instructions)
            for i in row
            if isinstance(i, ir.Send)
        }
        groups = {ranks_of(stages_of(group), self._holders) for group in tied} | {*self._holders}
        if gathers:
            groups.add(ranks_of(range(self.num_stages), self._holders))
        return Routes.of(channels, {group for group in groups if len(group) > 1}, timeout)

    def _make_stashes(self) -> dict[int, Stash]:
        """Of stages stepped after each microbatch."""
        if self.program.schedule.updates is Updates.ITERATION:
            return {}
        return {s: Stash(module, self._memory) for s, module in self.modules.items()}

    def _share(self) -> float:
        """What a microbatch's loss counts in the gradients of a step."""
        return 1.0 if self._stashes else 1.0 / self.microbatches

    def _make_cells(self) -> dict[tuple[int, int], Cell]:
        """One for each (stage, microbatch) of this rank; those with a W get a queue."""
        row = self.program.instructions[self.rank]
        pairs: dict[tuple[int, int], set[OpKind]] = {}
        for item in row:
            if isinstance(item, ir.Compute):
                op = item.op
                pairs.setdefault((op.stage, op.microbatch), set()).add(op.kind)
        host = Host(self.device)
        return {
            pair: Cell(
                WeightQueue(self._memory) if OpKind.W in kinds else None,
                recomputed=OpKind.R in kinds,
                parcel=Parcel(host, self._memory) if OpKind.O in kinds else None,
            )
            for pair, kinds in sorted(pairs.items())
        }

    def _fill(
        self, inputs: Sequence[Batch], options: Mapping[str, Any], target: Batch | None
    ) -> None:
        """Puts the step's batch into the cells."""
        last = self.num_stages - 1
        if self._runs(0) and not (inputs or options):
            raise InputError(f"step: rank {self.rank} runs the first stage: its inputs are missing")
        self._arguments.put(inputs if self._runs(0) else (), options)
        if self._runs(last):
            if self._loss is None or target is None:
                missing = "loss" if self._loss is None else "target"
                raise InputError(
                    f"step: rank {self.rank} runs the last stage: {missing} is missing"
                )
            targets = split(target, self.microbatches, "target")
            for (s, j), cell in self._cells.items():
                if s == last:
                    cell.target = targets[j]

    def _runs(self, stage: int) -> bool:
        return self.rank in self._users[stage]

    def _prepared(self) -> Executor:
        """Shapes, buffers and calls: in the first step, and where the shapes are others."""
        if self._executor is not None and not self._varying:
            return self._executor
        edges = self._shapes.edges(self._cells)
        if self._executor is not None and edges == self._edges:
            return self._executor
        self._edges = edges
        for (s, j), cell in self._cells.items():
            cell.edge = edges[s][j] if s < len(edges) else None
        self._transport.renew()
        self._executor = self._prepare(edges)
        return self._executor

    def _prepare(self, edges: Edges) -> Executor:
        carriers: dict[ir.TensorKind, Carrier] = dict.fromkeys(
            ir.TensorKind, Activations(self._cells, edges, self.device)
        )
        if isinstance(self.store, TravellingStages):
            carriers[ir.TensorKind.WEIGHT] = carriers[ir.TensorKind.GRADIENT] = self.store
        return Executor(
            self.program,
            self._transport,
            cells=self._cells,
            runners=self._runners,
            carriers=carriers,
            memory=self._memory,
            device=self.device,
            reduce=self._shared.reduction,
            average=self._beginning,
            step=self._stepping,
            judge=self._judge,
            validate=self._validate,
            rewind=self._again,
            pace=self._pace,
        )

    def _runner(self, stage: int) -> StageRunner:
        stash = self._stashes.get(stage)
        return (StageRunner if stash is None else StashingRunner)(
            stage,
            self.store.module(stage) if stash is None else stash,
            using=partial(self.store.using, stage),
            memory=self._memory,
            last=stage == self.num_stages - 1,
            loss=self._loss if self._cast is None else self._loss_in_full,
            seed=self._seed,
            skips=self._skips if self._skips.passes(stage) else None,
        )

    def _loss_in_full(self, output: Any, target: Any) -> Tensor:
        """The loss of an output in the modules' own dtype."""
        assert self._loss is not None
        assert isinstance(self.store, TravellingStages)
        master = self.store.precision.master
        return self._loss(
            mapped(lambda x: x.to(master) if x.is_floating_point() else x, output), target
        )

    def _sums(self, timeout: float, group: dist.ProcessGroup | None, relays: bool) -> Sums:
        order = stepping(self._holders)
        if not relays:
            return Gathered(self._transport, order, self.device)
        pairs = list(pairwise(order))
        channels = {*pairs, *((after, before) for before, after in pairs)}
        return Relayed(
            connect(Routes.of(channels, (), timeout), self.device, group), order, self.device
        )

    def _updating(
        self, most: float | None, loss_scale: LossScale | None, sums: Sums | None, relays: bool
    ) -> Update:
        trained = {id(p): p for m in self.modules.values() for p in m.parameters()}
        counted = {id(p): p for s in self.modules for p in self._shared.counted(s)}
        if loss_scale is not None:
            self._rescale(loss_scale.scale)
        if relays:
            self._finish_before_state_dicts()
        return Update(
            self.store,
            self.optimizers,
            sums=sums,
            most=float("inf") if most is None else most,
            loss_scale=loss_scale,
            trained=[*trained.values()],
            counted=[*counted.values()],
            rescale=self._rescale,
            ahead=relays,
        )

    def _rescale(self, scale: float) -> None:
        self._seed.fill_(scale / self.microbatches)

    def _finish_before_state_dicts(self) -> None:
        hook = Finishing(self.finish)
        for module in self.modules.values():
            module.register_state_dict_pre_hook(hook)  # type: ignore[no-untyped-call]
        for optimizer in self.optimizers.values():
            optimizer.register_state_dict_pre_hook(hook)

    def _stepping(self, stage: int) -> Call:
        """The call of a ``step``; where no sums are relayed a rank's first one judges before."""
        if stage in self._stashes:
            return partial(self._stashes[stage].step, self.optimizers.get(stage))
        row = self.program.instructions[self.rank]
        first = next(i.stage for i in row if isinstance(i, ir.Step))
        step = partial(self._update.step, stage)
        if stage != first or has_relays(self.program):
            return step

        def judge_and_step() -> None:
            self._judge()
            step()

        return judge_and_step

    def _clear_gradients(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()

    def _validate(self) -> bool:
        """The verdict on the step before, if it is still to come; its gradients are then done with."""
        if not self._update.pending:
            return False
        again = self._update.validate()
        self._clear_gradients()
        return again

    def _again(self) -> None:
        """Before the ops since the step's begin are run again."""
        assert self._rewind is not None
        assert self._batch is not None
        self._rewind.back()
        for cell in self._cells.values():
            self._memory.release(cell.held)
            cell.clear()
        self._batch()
        self.store.begin()

    def _judge(self) -> None:
        """What all gradients come to, once they are averaged over the replicas."""
        if self._averaging is not None:
            self._averaging.finish()
        self._update.judge()

    def _beginning(self, stage: int) -> Callable[[], None]:
        """The call of an ``average``."""
        assert self._averaging is not None
        return partial(self._averaging.begin, stage)

    def _collect(self, losses: list[Tensor] | None) -> Any:
        last = [cell for (s, _), cell in self._cells.items() if s == self.num_stages - 1]
        if losses is not None:
            losses[:] = [cell.loss for cell in last if cell.loss is not None]
        outputs = [cell.result for cell in last if cell.result is not None]
        for cell in last:
            cell.loss = cell.result = None
        return merge(outputs) if outputs else None

    def _ran(self) -> Executor:
        if self._executor is None:
            raise InputError("trace: no step has run yet")
        return self._executor
