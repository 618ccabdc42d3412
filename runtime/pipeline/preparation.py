"""Prepares a rank for a program: checks it, finds tied parameters, opens connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import nn

from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.formats import dump_program
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Updates, refuse_where_stale
from pipeloom.ir.model.transfers import holders
from pipeloom.ir.units import counted
from pipeloom.ir.verify.program import verify_program

from ..device import with_index
from ..measure.activation_ledger import Ledger
from ..measure.memory import Memory
from ..rank.context import RankContext
from ..rank.heap import keep_pages
from ..rank.options import PipelineOptions
from ..rank.role import RankRole, has_relays, routes_of
from ..stages.fsdp import is_sharded, resident_stages
from ..stages.store import Stage, StageStore, device_of, stage_modules, stage_table
from ..stages.streamed_weights import StreamedStages
from ..stages.tie_detection import Group, find_ties, stages_of
from ..transport import agreed, faults_under_way, gather_early
from .agreement import check_alike


def context_of(
    program: Program,
    stages: Mapping[int, Stage] | Sequence[Stage],
    options: PipelineOptions,
    held: ExitStack,
) -> RankContext:
    """Returns this rank's context for ``program``, with its modules and connections.

    ``stages``: as for :class:`Pipeline`. ``held``: the exit stack on which the closing of the store
    and of the connections is registered. All ranks call it. Raises InputError or
    InvalidScheduleError if program, stages and options cannot be combined.
    """
    check_given(program, options)
    (rank, size), ranks = options.whereabouts(), program.schedule.problem.ranks
    if size != ranks:
        raise InputError(f"program: made for {counted(ranks, 'rank')}, run by {size}")
    role = RankRole.of(program, rank)
    modules = stage_modules(stages, role.needed, program.schedule.problem.stages)
    options = with_ties(options, program, stages, modules)
    device, faults = device_for(options, modules), faults_under_way()
    if faults is not None and options.data_group is not None:
        faults.key = gather_early(faults.key, options.data_group, options.timeout)[0]
    store = store_for(program, role, device, options, modules)
    held.callback(store.close)
    return connected(program, role, options, store, device, held=held)


def context_after(
    before: RankContext, program: Program, options: PipelineOptions, held: ExitStack
) -> RankContext:
    """Returns the context of another ``program`` for the stages of the context ``before``.

    If both programs need the same connections, those of ``before`` are used. ``held``: the exit
    stack on which the closing of new connections is registered. All ranks call it. Raises
    InputError or InvalidScheduleError if the stages cannot be trained by ``program``.
    """
    check_given(program, options)
    check_exchange(before.program, program)
    check_tied(program, options.tied)
    store, role = before.store, RankRole.of(program, before.role.rank)
    return connected(program, role, options, store, before.device, held=held, before=before)


def check_given(program: Program, options: PipelineOptions) -> None:
    """Checks the program and the options; all ranks call it.

    Raises InputError if program or options differ between ranks or exclude each other, and
    InvalidScheduleError if the verifier finds the program invalid. The options ``check`` and
    ``verify`` switch these two checks on.
    """
    if options.check:
        check_alike(program, options)
    names = ("tied", "param_dtype", "clip_grad_norm", "loss_scale")
    refuse_where_stale(program.schedule, **{name: getattr(options, name) for name in names})
    if options.verify and (violations := verify_program(dump_program(program))):
        raise InvalidScheduleError(violations)


def check_tied(program: Program, tied: Sequence[Group]) -> None:
    """Raises InputError if stages share a parameter whose gradients the program does not sum.

    ``tied``: the groups of (stage, parameter name) that are one parameter.
    """
    reduced = {i.stages for row in program.instructions for i in row if isinstance(i, ir.Reduce)}
    for group in tied:
        stages = stages_of(group)
        if len(stages) > 1 and not any(set(stages) <= set(summed) for summed in reduced):
            names = " and ".join(f"{name} of stage {stage}" for stage, name in group)
            raise InputError(
                f"tied: {names} are one parameter, whose gradients the program does not sum: "
                f"compile it with --tied {','.join(map(str, stages))}, or of a profile that has "
                "them as tied"
            )


def check_exchange(program: Program, other: Program) -> None:
    """Raises InputError if a pipeline for ``program`` cannot run a step of the program ``other``.

    That is, if only one of the programs sends weights, steps after each microbatch or owns a stage
    on some rank, or if ``other`` needs a stage on a rank that was not given it. Each program is the
    same on all ranks, so all ranks raise the same error.
    """
    own, new = program.schedule, other.schedule
    homes, others = (list(map(list, holders(schedule))) for schedule in (own, new))
    sent, sends = ("weights" if each.transfers else "activations" for each in (own, new))
    needed = [[RankRole.of(p, r).needed for p in (program, other)] for r in range(len(own.order))]
    alike = {
        f"one that sends {sent}, as the pipeline's, not {sends}": sent == sends,
        "one that steps once an iteration, got one that steps after each microbatch": (
            own.updates is new.updates is Updates.ITERATION
        ),
        f"its stages on ranks {homes}, where the pipeline has them, got {others}": homes == others,
        "only stages on each rank that the pipeline was given there": all(
            set(wanted) <= set(known) for known, wanted in needed
        ),
    }
    for line, fits in alike.items():
        if not fits:
            raise agreed(InputError(f"program: expected {line}"))


def with_ties(
    options: PipelineOptions,
    program: Program,
    stages: Mapping[int, Stage] | Sequence[Stage],
    modules: dict[int, nn.Module],
) -> PipelineOptions:
    """Returns ``options`` whose ``tied`` also contains the tied parameters that any rank finds.

    ``stages``: as the user gave them. ``modules``: those of the stages that this rank needs. All
    ranks call it. Raises InputError if the program does not sum the gradients of a tied parameter.
    """
    count = program.schedule.problem.stages
    table = stage_table(stages, list(modules), count)
    given = {s: stage for s, stage in table.items() if isinstance(stage, nn.Module)} | modules
    tied = find_ties(options.tied, count, given, modules, options.gather_early)
    check_tied(program, tied)
    return replace(options, tied=tied)


def device_for(options: PipelineOptions, modules: Mapping[int, nn.Module]) -> torch.device:
    """Returns the option ``device``, by default the device of the modules.

    On a CPU, also lets the process keep freed memory (:func:`~..rank.heap.keep_pages`). Raises
    InputError if the option ``pace`` is set and the device is not a CPU.
    """
    given = options.device
    device = device_of(modules.values()) if given is None else with_index(torch.device(given))
    if options.pace and device.type != "cpu":
        raise InputError(f"pace: expected a CPU, got {device}: its ops do not wait")
    keep_pages(device)
    return device


def store_for(
    program: Program,
    role: RankRole,
    device: torch.device,
    options: PipelineOptions,
    modules: Mapping[int, nn.Module],
) -> StageStore:
    """Returns the store of this rank's ``modules``; all ranks call it.

    It is a :class:`StreamedStages` if the program sends weights or the options cast them;
    otherwise, weights stay on this rank or are sharded (:func:`resident_stages`). Raises InputError
    for stages wrapped in ``fully_shard`` that the program or the options exclude.
    """
    sharded = next((s for s, module in modules.items() if is_sharded(module)), None)
    if sharded is not None:
        _check_sharded(sharded, program, options, role)
    elif program.schedule.transfers or options.param_dtype is not None:
        dtypes = {"param_dtype": options.param_dtype, "reduce_dtype": options.reduce_dtype}
        dtypes["master"] = _dtype_elsewhere(modules, options)
        return StreamedStages(modules, program.schedule, role.rank, device, **dtypes)
    return resident_stages(modules, options.data_group, options.timeout)


def _dtype_elsewhere(
    modules: Mapping[int, nn.Module], options: PipelineOptions
) -> torch.dtype | None:
    """Returns the dtype of the parameters of all ranks, in case this rank has none.

    If there are several, returns the first in alphabetical order; None if no rank has parameters.
    All ranks call it.
    """
    own = sorted({str(p.dtype) for module in modules.values() for p in module.parameters()})
    rows = options.gather_early(own)
    found = sorted(set().union(*rows))
    return getattr(torch, found[0].removeprefix("torch.")) if found else None


def _check_sharded(stage: int, program: Program, options: PipelineOptions, role: RankRole) -> None:
    wanted = {
        "a program that sends activations": not program.schedule.transfers,
        "its mp_policy to say in what it computes, got param_dtype "
        f"{options.param_dtype}": options.param_dtype is None,
        f"no tied parameters, got {list(options.tied)}": not options.tied,
        "a program in which each stage is on one rank": all(
            len(ranks) <= 1 for ranks in role.holders
        ),
    }
    for what, there in wanted.items():
        if not there:
            raise InputError(f"stages[{stage}]: it is wrapped in fully_shard: expected {what}")


def connected(
    program: Program,
    role: RankRole,
    options: PipelineOptions,
    store: StageStore,
    device: torch.device,
    *,
    held: ExitStack,
    before: RankContext | None = None,
) -> RankContext:
    """Returns the rank's context, with connections to all ranks that it communicates with.

    ``before``: the context of an earlier program; its connections are used if the same ones are
    needed. ``held``: the exit stack on which the closing of new connections is registered. All
    ranks call it.
    """
    relays = options.needs_norm and options.post_validation and has_relays(program)
    gathers = options.needs_norm and not relays
    routes = routes_of(program, role.holders, options.tied, options.timeout, gathers=gathers)
    if before is not None and before.routes == routes:
        transport = before.transport
    else:
        transport = options.connect(routes, device)
        held.callback(transport.close)
    transport.replicated = options.data_group is not None
    if before is not None:
        transport.faults = before.transport.faults
    memory = Ledger() if options.memory else Memory()
    return RankContext(program, role, options, store, transport, memory, device, relays, routes)
