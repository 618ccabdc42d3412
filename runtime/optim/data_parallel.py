"""Data parallelism beside the pipeline: gradients averaged over its replicas while others
compute."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from threading import Thread

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..rank.context import RankContext
from ..rank.role import averaged
from ..stages.fsdp import ShardedModule, ShardedStages, gradient_of
from ..stages.store import device_of
from ..stages.unused_parameters import clear_unused


class Averaging:
    """The replicas' gradients, one message a stage, begun by ``average`` and waited for before
    ``step``.

    ``modules``: this rank's stages, in the order in which the program averages them; a parameter of
    several is averaged with the last one. ``group``: the processes that have this rank in the
    replicas, whose parameters and buffers start as the first replica's. ``dtype``: that in which
    gradients are sent; by default their own. ``sharded``: stages of which each replica has a shard.
    ``timeout``: seconds that an average may take on a CPU; on GPUs it is the group's own.
    ``spans``: on a CPU, when each stage's average set out and had come in the last step, in seconds
    of ``time.perf_counter``.
    """

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        group: dist.ProcessGroup,
        dtype: torch.dtype | None = None,
        sharded: Mapping[int, ShardedModule] | None = None,
        timeout: float = 300.0,
    ) -> None:
        self._group, self._dtype = group, dtype
        self._timeout = timedelta(seconds=timeout)
        self._device = device_of(modules.values()).type
        home = {id(p): s for s, module in modules.items() for p in module.parameters()}
        self._sharded = sharded or {}
        self._trained = {
            s: [p for p in module.parameters() if p.requires_grad and home[id(p)] == s]
            for s, module in modules.items()
        }
        self._under_way: list[_UnderWay] = []
        self.spans: dict[int, tuple[float, float]] = {}
        for stage, module in modules.items():
            whole = () if stage in self._sharded else module.parameters()
            self._start_equal([*whole, *module.buffers()])

    def begin(self, stage: int) -> None:
        """Sends the stage's gradients, all of which are there; returns at once."""
        sharded = self._sharded.get(stage)
        sent = self._sum(stage) if sharded is None else sharded.scatter(self._dtype)
        if sent is not None:
            self._under_way.append(_UnderWay(stage, *sent, self._device, self._timeout))

    def finish(self) -> None:
        """Returns once every gradient that was sent is the average."""
        for each in self._under_way:
            span = each.finish()
            if span is not None:
                self.spans[each.stage] = span
        self._under_way.clear()

    @torch.no_grad()
    def _sum(self, stage: int) -> tuple[dist.Work, Callable[[], None]] | None:
        unsure = [parameter for parameter in self._trained[stage] if parameter.grad is None]
        gradients = [gradient_of(parameter).flatten() for parameter in self._trained[stage]]
        if not gradients:
            return None
        flat = torch.cat(gradients).to(self._dtype or gradients[0].dtype)
        work = dist.all_reduce(flat, group=self._group, async_op=True)
        assert work is not None
        return work, partial(self._take, stage, flat, unsure)

    @torch.no_grad()
    def _take(self, stage: int, flat: Tensor, unsure: Sequence[nn.Parameter]) -> None:
        flat.div_(self._group.size())
        trained = self._trained[stage]
        parts = torch.split(flat, [parameter.numel() for parameter in trained])
        for parameter, part in zip(trained, parts, strict=True):
            gradient_of(parameter).copy_(part.view_as(parameter))
        clear_unused(unsure)

    @torch.no_grad()
    def _start_equal(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            value = tensor.detach().contiguous()
            dist.broadcast(value, group=self._group, group_src=0)
            tensor.copy_(value)


class _UnderWay:
    """A stage's gradients on their way; ``take`` makes of what came the average.

    On a CPU a thread waits for them, to see when they come: nobody else looks until the first
    ``step``.
    """

    def __init__(
        self,
        stage: int,
        work: dist.Work,
        take: Callable[[], None],
        device: str,
        timeout: timedelta,
    ) -> None:
        self.stage, self._timeout = stage, timeout
        self._work, self._take = work, take
        self._began, self._came = time.perf_counter(), 0.0
        self._failed: BaseException | None = None
        self._waiting: Thread | None = None
        if device == "cpu":
            self._waiting = Thread(target=self._wait, daemon=True)
            self._waiting.start()

    def finish(self) -> tuple[float, float] | None:
        """Returns once it is the average: when it set out and came, where that is known."""
        if self._waiting is None:
            self._work.wait()
        else:
            self._waiting.join()
        if self._failed is not None:
            raise ConnectionError(
                f"the average of stage {self.stage} over the replicas: {self._failed}"
            ) from self._failed
        self._take()
        return None if self._waiting is None else (self._began, self._came)

    def _wait(self) -> None:
        try:
            self._work.wait(self._timeout)
        except BaseException as error:  # raised where the step waits
            self._failed = error
        self._came = time.perf_counter()


def make_averaging(context: RankContext) -> Averaging | None:
    """What a rank averages over the replicas in its data group; None: there are none.

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
    return Averaging(modules, group, options.sum_dtype, sharded, options.timeout)
