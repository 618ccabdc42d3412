"""Data parallelism beside the pipeline: gradients averaged over its replicas while others
compute."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..dtensors import lay_out, local
from ..rank.context import RankContext
from ..rank.options import PipelineOptions
from ..rank.role import averaged
from ..stages.fsdp import ShardedModule, ShardedStages, Sum, gradient_of
from ..stages.store import device_of
from ..stages.unused_parameters import clear_unused, reals
from ..transport import wait_for
from .shard_squares import mesh_axes, processes_of


class Averaging:
    """The replicas' gradients, one message a stage, begun by ``average`` and waited for before
    ``step``.

    ``modules``: this rank's stages, in the order in which the program averages them; a parameter of
    several is averaged with the last one. ``group``: the processes that have this rank in the
    replicas, whose parameters and buffers start as the first replica's where ``starts``.
    ``sharded``: stages of which each replica has a shard. ``apart``: ids of parameters of which
    each process of the group has a part of its own, experts say: their gradients are of all
    replicas' microbatches already, and only divided.
    On a CPU an average may take as long as the options say, unless another replica's fault is
    found; on GPUs the time is the group's own.
    ``spans``: on a CPU, when each whole stage's average set out and had come in the last step, in
    seconds of ``time.perf_counter``.
    """

    def __init__(
        self,
        context: RankContext,
        modules: Mapping[int, nn.Module],
        group: dist.ProcessGroup,
        *,
        sharded: Mapping[int, ShardedModule],
        apart: frozenset[int],
        starts: bool,
    ) -> None:
        self._group, self._dtype, self._apart = group, context.options.sum_dtype, apart
        on_host = device_of(modules.values()).type == "cpu"
        self._timeout = timedelta(seconds=context.options.timeout) if on_host else None
        self._faults, self._sharded = context.transport.replicas, sharded
        home = {id(p): s for s, module in modules.items() for p in module.parameters()}
        self._own = {
            s: [p for p in module.parameters() if home[id(p)] == s] for s, module in modules.items()
        }
        self._under_way: list[tuple[int, Sum, float, torch.futures.Future[float] | None]] = []
        self.spans: dict[int, tuple[float, float]] = {}
        self._copies: list[tuple[str, nn.Parameter]] = []
        for stage, module in modules.items():
            whole = () if stage in self._sharded else module.named_parameters()
            copies = [(n, p) for n, p in whole if id(p) not in self._apart]
            self._copies += [(f"{n} of stage {stage}", p) for n, p in copies]
            named: dict[str, Tensor] = dict((*copies, *module.named_buffers()))
            if context.options.check:
                self._check_alike(stage, named)
            if starts:
                start_equal(list(named.values()), group)

    def trained(self) -> list[bool]:
        """Whether each parameter of which every replica has a copy is trained now."""
        return [parameter.requires_grad for _, parameter in self._copies]

    def check_trained(self, sums: Sequence[float]) -> None:
        """Raises InputError where a parameter is trained in some replicas alone; ``sums``: of all
        replicas' :meth:`trained`."""
        for (name, parameter), total in zip(self._copies, sums, strict=True):
            if total not in (0, self._group.size()):
                trains = parameter.requires_grad
                raise InputError(
                    f"step: expected requires_grad alike in all replicas of {name}, got {trains} "
                    f"here, {not trains} elsewhere"
                )

    def start(self) -> None:
        """Multiplies gradients from before a step where averaging only divides, which then leaves
        them."""
        for parameter in (p for stage in self._own for p in self._trained(stage)):
            if id(parameter) in self._apart and parameter.grad is not None:
                parameter.grad.mul_(self._group.size())

    def begin(self, stage: int) -> None:
        """Sends the stage's gradients, all of which are there; returns at once."""
        sharded, began = self._sharded.get(stage), time.perf_counter()
        for sent in self._sum(stage) if sharded is None else sharded.scatter(self._dtype):
            self._under_way.append((stage, sent, began, self._arrival(sent.work)))

    def finish(self) -> None:
        """Returns once every gradient that was sent is the average."""
        for stage, sent, began, arrival in self._under_way:
            self._wait(stage, sent.work)
            if sent.again is not None:
                self._wait(stage, sent.again())
            sent.take()
            if arrival is not None:
                self.spans[stage] = began, arrival.wait()
        self._under_way.clear()

    def _wait(self, stage: int, work: dist.Work) -> None:
        what = f"the average of stage {stage} over the replicas"
        wait_for(work, self._timeout, what, self._faults)

    def _arrival(self, work: dist.Work) -> torch.futures.Future[float] | None:
        """When the collective is over; None where torch does not know: on GPUs, of shards."""
        if self._timeout is not None:
            with suppress(RuntimeError):
                return work.get_future().then(lambda _: time.perf_counter())
        return None

    def _trained(self, stage: int) -> list[nn.Parameter]:
        """The parameters that are averaged with the stage, now: in all replicas the same."""
        return [p for p in self._own[stage] if p.requires_grad]

    @torch.no_grad()
    def _sum(self, stage: int) -> list[Sum]:
        every = self._trained(stage)
        lay_out(every)
        trained = [p for p in every if id(p) not in self._apart]
        for parameter in every:
            if id(parameter) in self._apart and parameter.grad is not None:
                parameter.grad.div_(self._group.size())
        unsure = [parameter for parameter in trained if parameter.grad is None]
        gradients = [local(gradient_of(parameter)).flatten() for parameter in trained]
        if not gradients:
            return []
        flat = torch.cat(gradients)  # in a dtype that holds all of theirs
        flat = flat.to(self._dtype or flat.dtype)
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        assert work is not None
        return [Sum(work, partial(self._take, trained, flat, unsure))]

    @torch.no_grad()
    def _take(
        self, trained: Sequence[nn.Parameter], flat: Tensor, unsure: Sequence[nn.Parameter]
    ) -> None:
        reals(flat).div_(self._group.size())
        gradients = [local(gradient_of(parameter)) for parameter in trained]
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        clear_unused(unsure)

    def _check_alike(self, stage: int, named: Mapping[str, Tensor]) -> None:
        """Raises InputError, alike on all, where replicas of a stage have other tensors."""
        rows: list[Any] = [None] * self._group.size()
        own = {
            (name, tuple(local(t).shape), str(t.dtype), t.requires_grad)
            for name, t in named.items()
        }
        dist.all_gather_object(rows, own, group=self._group)
        elsewhere = sorted(set().union(*rows) - set.intersection(*rows))
        if elsewhere:
            name, shape, *_ = elsewhere[0]
            raise InputError(
                f"stages[{stage}]: expected the same parameters and buffers, trained alike, on all "
                f"processes of data_group, {name} {list(shape)} is not on all of them: experts "
                "that each has of its own are named in norm_groups, with data_group as their group"
            )


@torch.no_grad()
def start_equal(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Makes the tensors those of the group's first process; all of them call it."""
    for tensor in map(local, tensors):
        value = tensor.detach().contiguous()
        dist.broadcast(value, group=group, group_src=0)
        tensor.copy_(value)


def make_averaging(context: RankContext, *, starts: bool) -> Averaging | None:
    """The averaging of gradients over the replicas in a rank's data group; None without replicas.

    ``starts``: the stages have not trained yet, and start as the first replica's.
    Raises InputError where a program that averages has no replicas, or replicas none that does.
    """
    program, store, options = context.program, context.store, context.options
    group, stages = options.data_group, averaged(program, context.role.rank)
    if group is None and stages:
        raise InputError("data_group: expected a process group: the program averages, got None")
    if group is None:
        return None
    if not any(averaged(program, r) for r in range(len(program.instructions))):
        raise InputError(
            "program: expected one compiled with data_parallel, as data_group is given"
        )
    sharded = store.sharded if isinstance(store, ShardedStages) else {}
    modules = {s: store.module(s) for s in stages}
    apart = frozenset(
        id(parameter)
        for s, module in modules.items()
        for name, parameter in module.named_parameters()
        if s not in sharded and _is_apart(f"stages[{s}]: {name}", name, parameter, options)
    )
    return Averaging(context, modules, group, sharded=sharded, apart=apart, starts=starts)


def _is_apart(where: str, name: str, parameter: nn.Parameter, options: PipelineOptions) -> bool:
    """Whether each process of the data group has a part of its own of the parameter.

    Raises InputError where only some have.
    """
    data, axes = {*processes_of(options.data_group)}, mesh_axes(parameter)
    copied = {p for axis, (_, shards) in axes.items() if not shards for p in axis}
    sharded = {p for axis, (_, shards) in axes.items() if shards for p in axis}
    for pattern, group in (options.norm_groups or {}).items():
        if fnmatchcase(name, pattern):
            sharded |= {*processes_of(group)}
    me = {dist.get_rank()}
    if (data & copied) - me or (data & sharded) - me not in (set(), data - me):
        raise InputError(
            f"{where}: expected a copy of it on each process of data_group, {sorted(data)}, or "
            f"shards over all of them, got it over {sorted(copied | sharded)}: fully_shard over "
            "the others, which averages over these alone"
        )
    return bool((data & sharded) - me)
