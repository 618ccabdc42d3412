"""Runs programs in training scripts for torch.distributed.pipelining, by changing one line.

::

    schedule = Schedule1F1B(stage, 8, loss_fn=loss)                              # before
    schedule = PlannedSchedule(stage, 8, loss_fn=loss, program="schedule.json")  # after

Stages, batches, losses, outputs and gradients are handled as in torch. pipeloom determines the
order of ops, the messages, and the split of the backward into B and W.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining.schedules import PipelineScheduleMulti
from torch.distributed.pipelining.stage import _PipelineStageBase

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import PROGRAM, parse_program, parse_schedule
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule, Updates
from pipeloom.ir.units import counted
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.runtime.stages.fsdp import parameter_groups
from pipeloom.runtime.tensors.microbatches import OneEach

from .planner.inputs.documents import Document, Planned, read_document, read_schedule

Stages: TypeAlias = _PipelineStageBase | Sequence[_PipelineStageBase]
Plan: TypeAlias = Program | Schedule | Planned | Document
"""A program, a schedule, a result of ``optimize``, or the file or JSON object of one of them."""
SAID_OTHERWISE = {
    "loss": "loss_fn",
    "optimizer": "none, as the caller's steps",
    "group": "none, but the stages' own",
    "device": "none, but the stages' own",
}
"""Options of :class:`~pipeloom.Pipeline` that :class:`PlannedSchedule` does not accept, and what is
expected instead."""
BESIDE_LISTS = ("losses", "return_outputs", "loss_kwargs")
"""Arguments of ``step`` that can be combined with lists of microbatches."""
RESERVED = {"update", "microbatches"}
"""Arguments of ``Pipeline.step`` that torch's schedules do not have; stages cannot use these
names."""


class PlannedSchedule(PipelineScheduleMulti):
    """A schedule of torch.distributed.pipelining that runs a program of pipeloom.

    Every rank of the stages' group creates one, and all ranks call ``step`` or ``eval`` the same
    number of times. The pipeline is connected in the first step, with the ``submod`` that each
    stage has then. Gradients accumulate until the caller zeroes them, and the caller steps its
    optimizers. In contrast to torch's schedules, a step scales only the gradients that it adds, not
    earlier ones, and ``eval`` switches modules to evaluation mode.

    Arguments:
        stages: this rank's ``PipelineStage``, or the list of all its stages, as the program places
            them.
        n_microbatches: the number of microbatches; must be that of the program.
        loss_fn: ``loss_fn(output, target, **loss_kwargs)`` returns the loss of one microbatch. If
            it is None, ``step`` runs only the forward.
        program: the program to run. A schedule is compiled; if stages are wrapped in
            ``fully_shard``, gradients are averaged over the processes that hold the shards.
        options: some of the options of :class:`~pipeloom.Pipeline`, such as ``scale_grads``,
            ``timeout`` or ``varying_shapes``.

    The other arguments are those of torch's schedules. Raises InputError if the stages do not match
    the program. The first step raises the errors that a :class:`~pipeloom.Pipeline` raises when it
    is created, and warns if the size of the stages' parameters differs from that in the program's
    profile.
    """

    def __init__(
        self,
        stages: Stages,
        n_microbatches: int,
        loss_fn: Callable[..., Tensor] | None = None,
        *,
        program: Plan,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None,
        output_merge_spec: Any = None,
        **options: Any,
    ) -> None:
        mine = list(stages) if isinstance(stages, Sequence) else [stages]
        self._plan = _read(program)
        schedule = self._plan if isinstance(self._plan, Schedule) else self._plan.schedule
        _check_plan(schedule, n_microbatches)
        _check_stages(schedule, mine)
        _check_options(options)
        super().__init__(
            mine,
            n_microbatches,
            loss_fn,
            args_chunk_spec,
            kwargs_chunk_spec,
            output_merge_spec,
            scale_grads=options.get("scale_grads", True),
        )
        self.stage_index_to_group_rank = dict(enumerate(schedule.problem.placement.owners))
        for stage in mine:
            stage.stage_index_to_group_rank = self.stage_index_to_group_rank
        self._options = options
        self._modules = [stage.submod for stage in mine]
        self._pipeline: Pipeline | None = None

    @classmethod
    def of(cls, schedule: Any, program: Plan, **options: Any) -> PlannedSchedule:
        """A planned schedule in place of ``schedule``, one of torch's, with its stages, number of
        microbatches, loss and chunk specs.

        ``options``: further arguments of :class:`PlannedSchedule`.
        """
        stages = getattr(schedule, "_stages", None) or [schedule._stage]
        options = {"scale_grads": schedule.scale_grads, **options}
        return cls(
            stages,
            schedule._n_microbatches,
            schedule._loss_fn,
            program=program,
            args_chunk_spec=schedule._args_chunk_spec,
            kwargs_chunk_spec=schedule._kwargs_chunk_spec,
            output_merge_spec=schedule._output_merge_spec,
            **options,
        )

    @classmethod
    def pipelining(
        cls,
        function: Callable[..., tuple[Any, ...]],
        program: Plan,
        **options: Any,
    ) -> Callable[..., tuple[Any, ...]]:
        """Wrap ``function``, whose first result is one of torch's schedules, so that it returns a
        planned schedule instead.

        The other results of ``function`` are returned unchanged. For torchtitan:
        ``pipelining_fn=PlannedSchedule.pipelining(pipeline_llm, program)`` in a model's spec.
        """

        @wraps(function)
        def planned(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
            schedule, *others = function(*args, **kwargs)
            return cls.of(schedule, program, **options), *others

        return planned

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that runs the steps. Raises InputError before the first step."""
        if self._pipeline is None:
            raise InputError("pipeline: no step has run yet")
        return self._pipeline

    def step(
        self,
        *args: Any,
        arg_mbs: list[tuple[Any, ...]] | None = None,
        kwarg_mbs: list[dict[str, Any]] | None = None,
        target_mbs: list[Any] | None = None,
        **given: Any,
    ) -> Any:
        """Run one step, with the arguments of torch's schedules or with lists of microbatches.

        ``args`` are whole batches. Instead of them, ``arg_mbs``, ``kwarg_mbs`` and ``target_mbs``
        may be lists with one entry per microbatch, as in torchtitan. ``given``: ``target``,
        ``losses``, ``return_outputs``, ``loss_kwargs``, and keyword arguments of the stages; with
        lists of microbatches, only ``losses``, ``return_outputs`` and ``loss_kwargs``. Returns the
        merged outputs on the rank of the last stage, and None on the other ranks or if
        ``return_outputs`` is false.
        """
        if arg_mbs is None and kwarg_mbs is None and target_mbs is None:
            return super().step(*args, **given)
        _check_beside_lists(args, given)
        losses, wanted = given.get("losses"), given.get("return_outputs", True)
        if self._has_backward and not torch.is_grad_enabled():
            raise RuntimeError("step: expected gradients to be enabled; eval runs without")
        self._step_microbatches(
            arg_mbs, kwarg_mbs, target_mbs, losses, wanted, given.get("loss_kwargs")
        )
        last = [stage for stage in self._stages if stage.is_last]
        return self._merge_outputs(last[0].output_chunks) if last and wanted else None

    def _step_microbatches(  # noqa: PLR0917
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Run the program, and store the outputs in the last stage, from which torch reads them."""
        args, kwargs = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        if self._pipeline is None:
            self._pipeline = self._connected()
        self._check_modules()
        inputs = [list(each) for each in zip(*args, strict=True)]
        last = next((stage for stage in self._stages if stage.is_last), None)
        run = self._pipeline.step if self._has_backward else self._pipeline.eval
        outputs = run(
            *inputs,
            target=target_mbs,
            losses=None if last is None else losses,
            return_outputs=return_outputs,
            loss_kwargs=loss_kwargs,
            **_by_microbatch(kwargs),
        )
        if last is not None and return_outputs:
            # a list, unless all are tensors of one shape; torch merges it
            last.output_chunks[:] = outputs if isinstance(outputs, list) else [outputs]

    def _connected(self) -> Pipeline:
        """Create and connect the pipeline. All ranks must call this at the same time."""
        stages, program = self._stages, self._plan
        self._modules = [stage.submod for stage in stages]
        group = self._options.get("data_group") or _shards_group(self._modules)
        if isinstance(program, Schedule):
            tied = [sorted({s for s, _ in group}) for group in self._options.get("tied", ())]
            program = compile_schedule(program, tied=tied, data_parallel=group is not None)
        options: dict[str, Any] = {
            "memory": False,
            **self._options,
            "data_group": group,
            "loss": self._loss_fn,
            "scale_grads": self.scale_grads,
            "group": stages[0].group,
            "device": stages[0].device,
        }
        modules = {stage.stage_index: stage.submod for stage in stages}
        return Pipeline(program, modules, **options)

    def _check_modules(self) -> None:
        """Raise InputError if the module of a stage changed after the pipeline was connected."""
        for stage, module in zip(self._stages, self._modules, strict=True):
            if stage.submod is not module:
                raise InputError(
                    f"stages: stage {stage.stage_index}: expected the submod of the first step, "
                    "got another: make the schedule anew after changing it"
                )


def _read(given: Plan) -> Program | Schedule:
    if isinstance(given, Program):
        return given
    if isinstance(given, Mapping | str | os.PathLike):
        document, where = read_document(given, "program")
        if document.get("format") == PROGRAM:
            return parse_program(document, where)
        return parse_schedule(document, where)
    return read_schedule(given)[0]


def _check_plan(schedule: Schedule, microbatches: int) -> None:
    """Raise InputError if the program passes weights, steps the optimizer more than once per
    iteration, or has a number of microbatches other than ``microbatches``."""
    passing, problem = schedule.problem.placement.passing, schedule.problem
    if passing is not Passing.ACTIVATIONS:
        raise InputError(f"program: passing: expected activations, got {passing.value}")
    if schedule.updates is not Updates.ITERATION:
        raise InputError(
            "program: updates: expected one optimizer step an iteration, got "
            f"{schedule.updates.value}"
        )
    if microbatches != problem.microbatches:
        raise InputError(
            f"n_microbatches: expected {problem.microbatches}, as the program has, got "
            f"{microbatches}"
        )


def _check_stages(schedule: Schedule, stages: Sequence[_PipelineStageBase]) -> None:
    """Raise InputError unless the program places these stages, and no others, on this rank.

    ``stages``: all stages that this rank of their process group has.
    """
    if not stages:
        raise InputError("stages: expected a PipelineStage or a list of them, got none")
    for i, stage in enumerate(stages):
        if not isinstance(stage, _PipelineStageBase):
            raise InputError(f"stages[{i}]: expected a PipelineStage, got {type(stage).__name__}")
    problem, rank, size = schedule.problem, stages[0].group_rank, stages[0].group_size
    if size != problem.ranks:
        raise InputError(
            f"program: made for {counted(problem.ranks, 'rank')}, the stages' group has {size}"
        )
    if stages[0].num_stages != problem.stages:
        raise InputError(
            f"program: has {counted(problem.stages, 'stage')}, expected "
            f"{stages[0].num_stages} as the stages say"
        )
    wanted, got = problem.placement.stages_of(rank), sorted(stage.stage_index for stage in stages)
    if list(wanted) != got:
        raise InputError(
            f"stages: expected {list(wanted)} on rank {rank}, as the program places them "
            f"({problem.placement.name}), got {got}"
        )


def _check_options(options: Mapping[str, Any]) -> None:
    for name, instead in SAID_OTHERWISE.items():
        if name in options:
            raise InputError(f"{name}: expected {instead}, got {options[name]!r}")


def _check_beside_lists(args: Sequence[Any], given: Mapping[str, Any]) -> None:
    """Raise InputError for arguments of ``step`` that cannot be combined with lists of
    microbatches.

    ``target=None``, which ``eval`` passes on, is allowed.
    """
    if args:
        raise InputError(f"step: expected no inputs beside lists of microbatches, got {len(args)}")
    lists = {"target": "target_mbs"}
    for name, value in given.items():
        if name not in BESIDE_LISTS and not (name in lists and value is None):
            instead = lists.get(name, "kwarg_mbs")
            raise InputError(
                f"step: {name}: expected it in {instead}, beside lists of microbatches"
            )


def _shards_group(modules: Sequence[nn.Module]) -> dist.ProcessGroup | None:
    """The process group over which ``fully_shard`` shards the stages, or None if they are not
    sharded.

    Raises InputError if the shards are also replicated.
    """
    parts = [part for m in modules for part in m.modules() if isinstance(part, FSDPModule)]
    meshes = [group.mesh_info for part in parts for group in parameter_groups(part)]
    if any(getattr(mesh, "replicate_process_group", None) is not None for mesh in meshes):
        raise InputError(
            "data_group: expected the group of all shards and their copies, such as "
            'mesh["replicate", "shard"]._flatten().get_group(), for stages that fully_shard has '
            "sharded over two dimensions, got None"
        )
    groups = [mesh.shard_process_group for mesh in meshes]
    return max(groups, key=dist.get_world_size, default=None)


def _by_microbatch(kwargs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The keyword arguments of the stages by name, each with one value per microbatch.

    Raises InputError if microbatches have arguments of different names, or if ``Pipeline.step`` has
    an argument of the same name.
    """
    names = kwargs[0].keys()
    for name in RESERVED & names:
        raise InputError(f"step: {name}: expected another name, which Pipeline.step does not have")
    for j, given in enumerate(kwargs):
        if given.keys() != names:
            raise InputError(
                f"step: kwarg_mbs[{j}]: expected {', '.join(names)} as in the first, got "
                f"{', '.join(given)}"
            )
    return {name: OneEach(given[name] for given in kwargs) for name in names}
