"""Data parallelism beside the pipeline: gradients averaged over its replicas while others compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.program import Program

from .roles import averaged
from .sharding import ShardedModule, ShardedStages, gradient_of
from .stages import StageStore


class Averaging:
    """The replicas' gradients, one message a stage, begun by ``average`` and waited for before ``step``.

    ``modules``: this rank's stages, in the order in which the program averages them; a parameter of
    several is averaged with the last one. ``group``: the processes that have this rank in the
    replicas, whose parameters and buffers start as the first replica's. ``dtype``: that in which
    gradients travel; by default their own. ``sharded``: stages of which each replica has a shard.
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        group: dist.ProcessGroup,
        dtype: torch.dtype | None = None,
        sharded: Mapping[int, ShardedModule] | None = None,
    ) -> None:
        self._group, self._dtype = group, dtype
        home = {id(p): s for s, module in modules.items() for p in module.parameters()}
        self._sharded = sharded or {}
        self._trained = {
            s: [p for p in module.parameters() if p.requires_grad and home[id(p)] == s]
            for s, module in modules.items()
        }
        self._under_way: list[tuple[dist.Work, Callable[[], None]]] = []
        for stage, module in modules.items():
            whole = () if stage in self._sharded else module.parameters()
            self._start_equal([*whole, *module.buffers()])

    def begin(self, stage: int) -> None:
        """Sends the stage's gradients, all of which are there; returns at once."""
        sharded = self._sharded.get(stage)
        sent = self._sum(stage) if sharded is None else sharded.scatter(self._dtype)
        if sent is not None:
            self._under_way.append(sent)

    def finish(self) -> None:
        """Returns once every gradient that was sent is the average."""
        for work, end in self._under_way:
            work.wait()
            end()
        self._under_way.clear()

    @torch.no_grad()
    def _sum(self, stage: int) -> tuple[dist.Work, Callable[[], None]] | None:
        gradients = [gradient_of(parameter).flatten() for parameter in self._trained[stage]]
        if not gradients:
            return None
        flat = torch.cat(gradients).to(self._dtype or gradients[0].dtype)
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        assert work is not None
        return work, partial(self._take, stage, flat)

    @torch.no_grad()
    def _take(self, stage: int, flat: Tensor) -> None:
        flat.div_(self._group.size())
        trained = self._trained[stage]
        parts = torch.split(flat, [parameter.numel() for parameter in trained])
        for parameter, part in zip(trained, parts, strict=True):
            gradient_of(parameter).copy_(part.view_as(parameter))

    @torch.no_grad()
    def _start_equal(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            value = tensor.detach().contiguous()
            dist.broadcast(value, group=self._group, group_src=0)
            tensor.copy_(value)


def make_averaging(
    program: Program,
    rank: int,
    store: StageStore,
    group: dist.ProcessGroup | None,
    dtype: torch.dtype | None,
) -> Averaging | None:
    """What ``rank`` averages over the replicas in ``group``; None: there are none.

    Raises InputError where a program that averages has no replicas, or replicas none that does.
    """
    stages = averaged(program, rank)
    if group is None and stages:
        raise InputError("data_group: expected a process group: the program averages, got None")
    if group is None:
        return None
    if not any(averaged(program, r) for r in range(len(program.instructions))):
        raise InputError(
            "program: expected one compiled with data_parallel, as data_group is given"
        )
    sharded = store.sharded if isinstance(store, ShardedStages) else {}
    return Averaging({s: store.module(s) for s in stages}, group, dtype, sharded)
