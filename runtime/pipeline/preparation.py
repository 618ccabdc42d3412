"""Checks, ties, weights and connections of one rank, before its pipeline is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program

from ..device import with_index
from ..measure.activation_ledger import Ledger
from ..measure.memory import Memory
from ..rank.checks import check_program, check_tied
from ..rank.context import RankContext
from ..rank.heap import keep_pages
from ..rank.options import PipelineOptions
from ..rank.role import RankRole, has_relays, routes_of
from ..stages.fsdp import is_sharded, resident_stages
from ..stages.store import Stage, StageStore, device_of, given_modules
from ..stages.streamed_weights import StreamedStages
from ..stages.tie_detection import find_ties
from ..transport import ReplicaFaults
from .agreement import check_alike


def check_given(program: Program, options: PipelineOptions) -> None:
    """Raises InputError where program and options are not alike on all ranks, or do not go
    together, InvalidScheduleError where the program breaks the rules. All ranks call it."""
    if options.check:
        check_alike(program, options)
    check_program(program, options)


def with_ties(
    options: PipelineOptions,
    program: Program,
    stages: Mapping[int, Stage] | Sequence[Stage],
    modules: dict[int, nn.Module],
) -> PipelineOptions:
    """The options, and with them the ties that nobody named but some rank sees.

    ``stages`` as the caller gave them, ``modules`` those of this rank; all ranks call it. Raises
    InputError where the program does not sum the gradients of a tie.
    """
    count = program.schedule.problem.stages
    given = given_modules(stages, list(modules), count) | modules
    tied = find_ties(options.tied, count, given, modules, options.gather_early)
    check_tied(program, tied)
    return replace(options, tied=tied)


def device_for(options: PipelineOptions, modules: Mapping[int, nn.Module]) -> torch.device:
    """The device of the options, else of the modules, made ready. Raises InputError where ops are
    paced on a GPU."""
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
    *,
    replicas: ReplicaFaults | None,
) -> StageStore:
    """The store of the rank's ``modules``: as they are where no weights are sent and none cast.

    Raises InputError for sharded stages that cannot be run, and complex
    parameters where they are cast.
    """
    if options.sum_dtype is not None:
        _check_real(modules)
    sharded = next((s for s, module in modules.items() if is_sharded(module)), None)
    if sharded is not None:
        _check_sharded(sharded, program, options, role)
    elif program.schedule.transfers or options.param_dtype is not None:
        dtypes = {"param_dtype": options.param_dtype, "reduce_dtype": options.reduce_dtype}
        dtypes["master"] = _dtype_elsewhere(modules, options)
        return StreamedStages(modules, program.schedule, role.rank, device, **dtypes)
    return resident_stages(modules, options.data_group, options.timeout, replicas)


def _dtype_elsewhere(
    modules: Mapping[int, nn.Module], options: PipelineOptions
) -> torch.dtype | None:
    """The dtype of all ranks' parameters, for those whose stages have none; all ranks call it."""
    own = sorted({str(p.dtype) for module in modules.values() for p in module.parameters()})
    rows = options.gather_early(own)
    found = sorted(set().union(*rows))
    return getattr(torch, found[0].removeprefix("torch.")) if found else None


def _check_real(modules: Mapping[int, nn.Module]) -> None:
    for s, module in modules.items():
        for name, parameter in module.named_parameters():
            if parameter.is_complex():
                raise InputError(
                    f"stages[{s}]: {name} is {parameter.dtype}: expected real parameters with "
                    "param_dtype or reduce_dtype, whose numbers have no imaginary part"
                )


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
    replicas: ReplicaFaults | None,
    before: RankContext | None = None,
) -> RankContext:
    """The rank's context, with connections to all ranks that it has to do with, which ``held``
    gives back; all ranks call it. It has those of the context ``before`` it, where they are the
    same."""
    relays = options.needs_norm and options.post_validation and has_relays(program)
    gathers = options.needs_norm and not relays
    routes = routes_of(program, role.holders, options.tied, options.timeout, gathers=gathers)
    if before is not None and before.routes == routes:
        transport = before.transport
    else:
        transport = options.connect(routes, device)
        held.callback(transport.close)
    transport.replicas = replicas
    memory = Ledger() if options.memory else Memory()
    buffers = None if before is None else before.buffers
    return RankContext(
        program, role, options, store, transport, memory, device, relays, routes, buffers
    )
