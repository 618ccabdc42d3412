"""Checks, ties, weights and connections of one rank, before its pipeline is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program

from ..measure.activation_ledger import Ledger, NoLedger
from ..optim.norm_groups import numbered
from ..rank.checks import check_program, check_tied
from ..rank.consistency import check_agreement
from ..rank.context import RankContext
from ..rank.heap import keep_pages
from ..rank.options import PipelineOptions
from ..rank.role import RankRole, has_relays, routes_of
from ..stages.make_store import make_store
from ..stages.store import Stage, StageStore, device_of, given_modules
from ..stages.tie_detection import find_ties
from ..transport import ReplicaFaults, connect, gather_early


def check_given(program: Program, options: PipelineOptions) -> None:
    """Raises InputError where program and options are not alike on all ranks, or do not go
    together, InvalidScheduleError where the program breaks the rules. All ranks call it."""
    check_agreement(program, _alike(options), options.group, options.timeout)
    check_program(program, options)


def _alike(options: PipelineOptions) -> dict[str, object]:
    """The options that all ranks must be given alike, in a form that prints the same on each."""
    names = ("varying_shapes", "param_dtype", "reduce_dtype", "clip_grad_norm", "loss_scale")
    more = ("scale_grads", "post_validation", "cuda_graph")
    groups = options.norm_groups
    return {
        "tied": [[tuple(pair) for pair in shared] for shared in options.tied],
        "skips": [tuple(pair) for pair in options.skips],
        **{name: getattr(options, name) for name in (*names, *more)},
        "programs": options.programs is not None,
        "norm_groups": None if groups is None else numbered(groups),
    }


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
    gather = partial(gather_early, group=options.group, seconds=options.timeout)
    tied = find_ties(options.tied, count, given, modules, gather)
    check_tied(program, tied)
    return replace(options, tied=tied)


def device_for(options: PipelineOptions, modules: Mapping[int, nn.Module]) -> torch.device:
    """The device of the options, else of the modules, made ready. Raises InputError where ops are
    paced on a GPU."""
    given = options.device
    device = device_of(modules.values()) if given is None else torch.device(given)
    if options.pace and device.type != "cpu":
        raise InputError(f"pace: expected a CPU, got {device}: its ops do not wait")
    keep_pages(device)
    return device


def store_for(
    program: Program,
    rank: int,
    device: torch.device,
    options: PipelineOptions,
    modules: Mapping[int, nn.Module],
    *,
    replicas: ReplicaFaults | None,
) -> StageStore:
    """The store of the rank's ``modules`` that the options ask for."""
    return make_store(
        modules,
        program,
        rank,
        device,
        param_dtype=options.param_dtype,
        reduce_dtype=options.reduce_dtype,
        tied=options.tied,
        data_group=options.data_group,
        timeout=options.timeout,
        faults=replicas,
    )


def connected(
    program: Program,
    role: RankRole,
    options: PipelineOptions,
    store: StageStore,
    device: torch.device,
    *,
    replicas: ReplicaFaults | None,
    before: RankContext | None = None,
) -> RankContext:
    """The rank's context, with connections to all ranks that it has to do with; all ranks call
    it. It has those of the context ``before`` it, where they are the same."""
    relays = options.needs_norm and options.post_validation and has_relays(program)
    gathers = options.needs_norm and not relays
    routes = routes_of(program, role.holders, options.tied, options.timeout, gathers=gathers)
    if before is not None and before.routes == routes:
        transport = before.transport
    else:
        transport = connect(routes, device, options.group)
    transport.replicas = replicas
    memory = Ledger() if options.memory else NoLedger()
    own = relays, routes, None if before is None else before.buffers
    return RankContext(program, role, options, store, transport, memory, device, *own)
