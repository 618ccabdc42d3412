"""Data parallelism: averages gradients over replicas of the pipeline while other stages compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..dtensors import lay_out, local
from ..rank.context import RankContext
from ..rank.role import averaged, averages
from ..stages.fsdp import ShardedStages
from ..stages.gradients import clear_unused, flattened, gradient_of, spread
from .shard_squares import Axes, mesh_axes, processes_of, summed, wait


class Averaging:
    """Averages gradients over the replicas of the pipeline, by one all-reduce per stage.

    The program's instruction ``average`` starts the all-reduce of a stage (:meth:`begin`); before
    the first ``step``, all are waited for (:meth:`finish`). A parameter that several stages share
    is averaged with the last of these stages that the program averages.

    ``group``: the processes with this rank in all replicas. ``axes``: the axes over which each
    parameter is sharded, by the parameter's ``id``. ``starts``: whether the stages have not been
    trained yet, so that their parameters and buffers are first set to those of the first replica.

    On a CPU, an average may take as long as the option ``timeout``. On GPUs, the timeout of the
    group applies.
    """

    def __init__(
        self,
        context: RankContext,
        group: dist.ProcessGroup,
        axes: Mapping[int, Axes],
        *,
        starts: bool,
    ) -> None:
        store, stages = context.store, averaged(context.program, context.role.rank)
        self._context, self._group = context, group
        self._sharded = store.sharded if isinstance(store, ShardedStages) else {}
        modules = {s: store.module(s) for s in stages}
        home = {id(p): s for s, module in modules.items() for p in module.parameters()}
        self._own = {
            s: [p for p in module.parameters() if home[id(p)] == s] for s, module in modules.items()
        }
        self._under_way: list[tuple[int, dist.Work | None, Callable[[], None]]] = []
        self._copies: list[tuple[str, nn.Parameter]] = []
        for stage, module in modules.items():
            whole = () if stage in self._sharded else module.named_parameters()
            copies = [*whole]
            for n, p in copies:
                _check_copied(f"stages[{stage}]: {n}", p, axes[id(p)], group)
            self._copies += [(f"{n} of stage {stage}", p) for n, p in copies]
            named: dict[str, Tensor] = dict((*copies, *module.named_buffers()))
            if context.options.check:
                self._check_alike(stage, named)
            if starts:
                start_equal(list(named.values()), group)

    def trained(self) -> list[str]:
        """Returns the names of the averaged parameters of this rank that now require gradients."""
        return [name for name, parameter in self._copies if parameter.requires_grad]

    def begin(self, stage: int) -> None:
        """Starts averaging the gradients of ``stage``, after its last backward.

        Does not wait for the average. But for a stage wrapped in ``fully_shard`` on a CPU, first
        waits until all replicas have called this method, and raises ConnectionError if one of them
        fails or does not call it within the timeout.
        """
        if stage in self._sharded:
            if self._context.device.type == "cpu":  # torch's wait notices no fault or timeout
                what = f"averaging the gradients of stage {stage} over the replicas"
                summed(self._context, 0.0, self._group, what)
            self._sharded[stage].reduce(self._context.options.sum_dtype)
        else:
            self._send(stage)

    def finish(self) -> None:
        """Waits for the averages of all stages, and writes them into the gradients."""
        for stage, work, take in self._under_way:
            wait(self._context, work, f"the average of stage {stage} over the replicas")
            take()
        self._under_way.clear()
        for sharded in self._sharded.values():
            sharded.finish()

    def _trained(self, stage: int) -> list[nn.Parameter]:
        """Returns the stage's trained parameters, without those averaged with a later stage.

        They are the same in all replicas.
        """
        return [p for p in self._own[stage] if p.requires_grad]

    @torch.no_grad()
    def _send(self, stage: int) -> None:
        trained = self._trained(stage)
        lay_out(trained)
        if not trained:
            return
        unsure = [parameter for parameter in trained if parameter.grad is None]
        gradients = [local(gradient_of(parameter)) for parameter in trained]
        flat = flattened(gradients, self._context.options.sum_dtype)
        work = dist.all_reduce(flat, group=self._group, async_op=True)

        @torch.no_grad()
        def take() -> None:
            spread(flat.div_(self._group.size()), gradients)
            clear_unused(unsure)

        self._under_way.append((stage, work, take))

    def _check_alike(self, stage: int, named: Mapping[str, Tensor]) -> None:
        """Raises InputError on all replicas if the replicas' tensors of ``stage`` do not match.

        ``named``: this replica's parameters and buffers, by name. Names, shapes, dtypes and
        ``requires_grad`` must be equal.
        """
        own = {n: (local(t).shape, t.dtype, t.requires_grad) for n, t in named.items()}
        name = _unlike(own, self._group)
        if name is not None:
            raise InputError(
                f"stages[{stage}]: expected the same parameters and buffers, trained alike, on all "
                f"processes of data_group, {name} is not on all of them"
            )


def _unlike(own: Mapping[str, object], group: dist.ProcessGroup) -> str | None:
    """Returns the first key whose values differ between processes, or that some of them lack.

    Returns None if there is no such key. ``own``: the values of this process, by key. All processes
    of ``group`` call it.
    """
    rows: list[Any] = [None] * group.size()
    dist.all_gather_object(rows, own, group=group)
    keys = sorted(set().union(*rows))
    return next((key for key in keys if any(row.get(key) != own.get(key) for row in rows)), None)


@torch.no_grad()
def start_equal(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Overwrites ``tensors`` with the values that the first process of ``group`` passes.

    All processes of the group call it, with tensors of equal shapes and dtypes in the same order.
    """
    for tensor in map(local, tensors):
        value = tensor.detach().contiguous()
        dist.broadcast(value, group=group, group_src=0)
        tensor.copy_(value)


def make_averaging(
    context: RankContext, axes: Mapping[int, Axes], *, starts: bool
) -> Averaging | None:
    """Returns the object that averages over the option ``data_group``; None without this option.

    ``axes`` and ``starts``: see :class:`Averaging`. Raises InputError if the program averages and
    there is no ``data_group``, or the other way around.
    """
    program, group = context.program, context.options.data_group
    if group is None and averaged(program, context.role.rank):
        raise InputError("data_group: expected a process group: the program averages, got None")
    if group is None:
        return None
    if not averages(program):
        raise InputError(
            "program: expected one compiled with data_parallel, as data_group is given"
        )
    return Averaging(context, group, axes, starts=starts)


def _check_copied(
    where: str, parameter: nn.Parameter, shards: Axes, group: dist.ProcessGroup
) -> None:
    """Raises InputError if ``parameter`` is a shard or a DTensor over processes of ``group``.

    ``where``: the parameter's name in the message. ``shards``: the axes over which it is sharded.
    """
    over, data = {*chain(*shards, *mesh_axes(parameter))}, {*processes_of(group)}
    if (data & over) - {dist.get_rank()}:
        raise InputError(
            f"{where}: expected a copy of it on each process of data_group, {sorted(data)}, got it "
            f"over {sorted(over)}: fully_shard averages shards"
        )
