"""Sums the squares of gradients for the norm if several pipelines have shards of parameters.

The pipelines run at the same time, each with a shard of some parameters (tensor or expert
parallelism). The option ``norm_groups`` names these parameters and, for each, the process group
over which it is sharded.

::

    2 ranks x 2 shards, norm_groups={"*.up.weight": row}:

              pipeline 0   pipeline 1
    rank 0        0 <---------> 1       squares: sum over shards, average over copies of all else
    rank 1        2 <---------> 3       the same
                  |             |
                 norm          norm     of all gradients of the model, with the same bits

Gradients of parameters that are not shards are equal in all pipelines up to rounding. They are
included in the same sum, so that all pipelines make the same decision about a step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from itertools import chain
from math import prod

import torch.distributed as dist
from torch import nn

from pipeloom.ir.errors import InputError

from ..rank.context import RankContext
from ..rank.options import NormGroups
from ..stages.tie_detection import Member
from .shard_squares import (
    Axes,
    Processes,
    ShardSquares,
    Squares,
    mesh_axes,
    processes_of,
    sharded_over,
    squares_of,
    widest,
)


def numbered(norm_groups: NormGroups) -> dict[str, int]:
    """Returns, for each pattern of the option ``norm_groups``, the index of its process group.

    Distinct groups are numbered from 0, in the order in which they first occur. Unlike the groups,
    which are different objects on each rank, these indices can be compared between ranks. Raises
    InputError if a value is not a process group that contains this process.
    """
    for pattern, group in norm_groups.items():
        if not isinstance(group, dist.ProcessGroup):
            raise InputError(
                f"norm_groups: {pattern!r}: expected a process group that has this process, "
                f"got {group!r}"
            )
    distinct = list(dict.fromkeys(map(processes_of, norm_groups.values())))
    return {p: distinct.index(processes_of(group)) for p, group in norm_groups.items()}


def shard_axes(context: RankContext, modules: Mapping[int, nn.Module]) -> dict[int, Axes]:
    """Returns the axes over which each parameter of this rank's ``modules`` is sharded.

    Keys are the parameters' ``id``; an axis is a tuple of global ranks. All ranks call it. Raises
    InputError if a pattern of ``norm_groups`` matches no parameter of any rank, or a DTensor that
    is already sharded over the pattern's group.
    """
    parameters = _named(modules)
    patterns = {p: processes_of(g) for p, g in (context.options.norm_groups or {}).items()}
    if patterns:
        here = [p for p in patterns if any(fnmatchcase(name, p) for _, name in parameters)]
        lacking = {*patterns}.difference(*context.transport.gather(here))
        if lacking:
            raise InputError(
                f"norm_groups: {min(lacking)!r}: no parameter of any stage has such a name"
            )
    return {
        id(p): sharded_over(p) | named_axes(*named, patterns, {*chain(*mesh_axes(p))})
        for named, p in parameters.items()
    }


def named_axes(
    stage: int, name: str, patterns: Mapping[str, Processes], mesh: Collection[int]
) -> Axes:
    """Returns the process groups of those ``patterns`` that match the parameter ``name``.

    A group that is a proper subset of another matching group is left out. ``stage``: the
    parameter's stage, for the error message. ``mesh``: all processes of the parameter's mesh; empty
    if it is no DTensor. Raises InputError if a group contains several processes of ``mesh``, as the
    norm of a DTensor already includes its shards.
    """
    found = {pattern: own for pattern, own in patterns.items() if fnmatchcase(name, pattern)}
    for pattern, own in found.items():
        if len({*own} & {*mesh}) > 1:
            raise InputError(
                f"norm_groups: {pattern!r}: expected none for a DTensor, whose norm is of all "
                f"its shards, got {name} of stage {stage}"
            )
    return frozenset(widest([*found.values()]))


def make_norm_squares(
    context: RankContext, modules: Mapping[int, nn.Module], axes: Mapping[int, Axes]
) -> Squares:
    """Returns the function that computes the sum of squares of gradients, with all their shards.

    ``axes``: the result of :func:`shard_axes`. All processes of its groups call it. Raises
    InputError for groups that contain several ranks of the pipeline, several processes of the
    data group, or that do not form a mesh.
    """
    options = context.options
    groups = {processes_of(group): group for group in (options.norm_groups or {}).values()}
    data = () if options.data_group is None else processes_of(options.data_group)
    for group in groups:
        if len({*group} & {*data}) > 1:
            raise InputError(
                f"norm_groups: group {list(group)}: expected processes with other shards, got some "
                f"of data_group {list(data)}, which averages them"
            )
    groups |= _meshes(modules)
    own = {*processes_of(options.group)} if groups and options.transport is None else set[int]()
    for group in groups:
        if len(several := sorted({*group} & own)) > 1:
            raise InputError(
                f"norm_groups, meshes of stages: group {list(group)}: expected one rank of each "
                f"pipeline, got processes {several} of one"
            )
    return ShardSquares(context, groups, axes) if groups else squares_of


def has_unknown_others(context: RankContext, modules: Mapping[int, nn.Module]) -> bool:
    """Whether there are pipelines that no option joins to this one; all ranks call it.

    Plain parameters may then be shards, of which this one does not know. False if ``norm_groups``
    is given. A pipeline is joined by its ``data_group`` and the meshes of its DTensors.
    """
    options = context.options
    if options.group is None or options.norm_groups is not None:
        return False
    data = () if options.data_group is None else (processes_of(options.data_group),)
    replicas = prod(map(len, widest([*{*data, *_meshes(modules)}])))
    joined: int = max(context.transport.gather(replicas)) * context.transport.size
    if joined < dist.get_world_size() and options.needs_norm:
        raise InputError(
            "norm_groups: expected the process groups over which parameters are shards, as "
            f"{dist.get_world_size()} processes run and {joined} judge steps by one norm; or {{}}, "
            "where they have nothing to do with each other"
        )
    return joined < dist.get_world_size()


def _meshes(modules: Mapping[int, nn.Module]) -> dict[Processes, dist.ProcessGroup]:
    """Returns the process groups along the dimensions of the DTensors' meshes."""
    parameters = (p for module in modules.values() for p in module.parameters())
    return {axis: group for p in parameters for axis, (group, _) in mesh_axes(p).items()}


def _named(modules: Mapping[int, nn.Module]) -> dict[Member, nn.Parameter]:
    return {
        (s, name): parameter
        for s, module in modules.items()
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }
