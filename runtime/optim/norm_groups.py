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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from fnmatch import fnmatchcase
from itertools import chain
from math import prod

import torch.distributed as dist
from torch import nn

from pipeloom.ir.errors import InputError

from ..rank.context import RankContext
from ..rank.options import NormGroups, PipelineOptions
from ..stages.tie_detection import joined
from ..transport import gather_early
from .copies import CopiesCheck, Named
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
) -> tuple[Squares, CopiesCheck | None]:
    """Returns the function that computes the sum of squares of gradients, and the check of copies.

    The sum includes the shards of other processes. The check is None if other processes have
    neither shards nor copies of this rank's parameters, if the option ``check`` is off, or if there
    is no optimizer. ``axes``: the result of :func:`shard_axes`. All ranks call it. Raises
    InputError on all ranks if the initial values of copies differ.
    """
    options, parameters = context.options, _named(modules)
    groups = {processes_of(group): group for group in (options.norm_groups or {}).values()}
    groups |= {
        axis: group for p in parameters.values() for axis, (group, _) in mesh_axes(p).items()
    }
    copies = {n: p for n, p in parameters.items() if p.requires_grad and not axes[id(p)]}
    check = CopiesCheck(copies, list(groups.values()))
    for differing in context.transport.gather(check.values()) if options.check else ():
        if differing is not None:
            raise InputError(differing)
    if not groups:
        return squares_of, None
    squares = ShardSquares(context, groups, axes)
    return squares, check if options.check and options.optimizer is not None else None


def _named(modules: Mapping[int, nn.Module]) -> dict[Named, nn.Parameter]:
    return {
        (s, name): parameter
        for s, module in modules.items()
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }


@dataclass(frozen=True, slots=True)
class Side:
    """The process groups to which one process belongs; each is a tuple of global ranks.

    ``pipeline``: the processes of its pipeline, in which its rank is ``rank``. ``data``: its data
    group, empty if there is none. ``meshes``: the groups along the dimensions of its DTensors'
    meshes. ``groups``: those of the option ``norm_groups``; None if the option is not given.
    ``needs_norm``: whether its optimizer steps depend on the norm.
    """

    rank: int
    pipeline: Processes
    data: Processes = ()
    meshes: tuple[Processes, ...] = ()
    groups: tuple[Processes, ...] | None = None
    needs_norm: bool = True


def check_norm_groups(options: PipelineOptions, modules: Mapping[int, nn.Module]) -> bool:
    """Raises InputError if the pipelines of all processes would compute different or wrong norms.

    Returns whether plain parameters of this pipeline may be shards. They may be if ``norm_groups``
    is not given and there are other pipelines that no mesh, data group or norm group joins to this
    one. All processes of ``torch.distributed`` call it.
    """
    norm_groups, group, data_group = options.norm_groups, options.group, options.data_group
    if group is None and not norm_groups:
        return False  # all processes form one pipeline
    side = Side(
        options.whereabouts()[0],
        processes_of(group or dist.group.WORLD),
        () if data_group is None else processes_of(data_group),
        tuple({a for m in modules.values() for p in m.parameters() for a in mesh_axes(p)}),
        None if norm_groups is None else tuple({processes_of(g): 0 for g in norm_groups.values()}),
        options.needs_norm,
    )
    rows = gather_early(astuple(side), None, options.timeout)
    return check_sides([Side(*row) for row in rows]) and norm_groups is None


def check_sides(sides: Sequence[Side]) -> bool:
    """Raises InputError if the process groups of the processes contradict each other.

    ``sides``: the groups of each process, by global rank. Each mesh and norm group must join
    processes of the same rank in their pipelines. All processes of a norm group must list it at the
    same position. Meshes and norm groups must form grids (:func:`_check_grids`). If some pipelines
    are joined by no mesh, data group or norm group, ``norm_groups`` must be given wherever
    optimizer steps depend on the norm; returns whether there are such pipelines.
    """
    for process, side in enumerate(sides):
        for mesh in side.meshes:
            _check_rank(sides, f"stages: a DTensor's mesh on processes {list(mesh)}", mesh)
        for i, group in enumerate(side.groups or ()):
            _check_group(sides, process, i, group)
    _check_grids(sides)
    every = [p for s in sides for p in (s.pipeline, s.data, *s.meshes, *(s.groups or ()))]
    parts = joined(filter(None, dict.fromkeys(every)))
    if len(parts) > 1 and any(side.needs_norm and side.groups is None for side in sides):
        raise InputError(
            "norm_groups: expected the process groups over which parameters are shards, as "
            f"pipelines on processes {' and '.join(map(str, parts))} judge steps each by its own "
            "norm; or {}, where they have nothing to do with each other"
        )
    return len(parts) > 1


def _check_rank(sides: Sequence[Side], where: str, group: Processes) -> None:
    ranks = [sides[other].rank for other in group]
    if len(set(ranks)) > 1:
        raise InputError(f"{where}: expected those of one rank in their pipelines, got {ranks}")


def _check_group(sides: Sequence[Side], process: int, number: int, group: Processes) -> None:
    where = f"norm_groups: group {list(group)}"
    _check_rank(sides, where, group)
    for other in group:
        if (sides[other].groups or ())[number : number + 1] != (group,):
            raise InputError(
                f"{where}: expected it as the {number + 1}. on all of its processes, not so on "
                f"{other}"
            )
    own = sides[process]
    if {*group} & {*own.data} - {process} and {*group} != {*own.data}:
        raise InputError(
            f"{where}: expected processes with other shards, got some of data_group "
            f"{list(own.data)}, which averages them; all of it, where experts are shards over it"
        )


def _check_grids(sides: Sequence[Side]) -> None:
    """Raises InputError unless the meshes and norm groups of each process form a grid.

    In a grid, sums over one group after the other include each process that the groups join exactly
    once.
    """
    own = [widest([*{*side.meshes, *(side.groups or ())}]) for side in sides]
    for joint in joined(dict.fromkeys(axis for axes in own for axis in axes)):
        if any(prod(map(len, own[process])) != len(joint) for process in joint):
            raise InputError(
                f"norm_groups: expected groups that make up one mesh of the processes {joint}"
            )
