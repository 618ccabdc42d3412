"""Stages wrapped in torch's ``fully_shard``: gathered for a step, their gradients scattered after
it.

::

    between steps   each process has its shard of parameters, gradients and optimizer state
    step begins     all parameters are gathered, once
    F, B, W         compute with whole parameters; gradients add up whole, none is reduced
    average s       the sum of stage s leaves, its parameters go; a shard of the average comes back
                    (of the sum over a factor of its own: set_gradient_divide_factor)
                    (HSDP: summed once more, over the processes that have the same shard)

The module's own hooks are told to do nothing of it: they would reduce in the backward pass of each
microbatch, where weight gradients that are put off are not there yet. ``close`` tells them to do
again what they did.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..dtensors import lay_out
from ..transport import ReplicaFaults, wait_for
from .gradient_shards import ShardedParameter, parameter_groups, sharded_parameters
from .store import StageStore, check_frozen, device_of
from .unused_parameters import nothing

if TYPE_CHECKING:  # takes a second to import, and whoever has wrapped a module has done so
    from torch.distributed.fsdp import FSDPModule

# what the calls of FSDPModule below set
SET = ("reduce_grads", "all_reduce_grads", "reshard_after_backward", "post_forward_mesh_info")
REPLICAS = " over the replicas"
# before torch 2.13 it has another name
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def is_sharded(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was called on the module or any in it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(m, fsdp.FSDPModule) for m in module.modules())


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """Gradients on their way: ``work``, then what ``again`` begins, where it is not None; then
    ``take`` makes of them what parameters have."""

    work: dist.Work
    take: Callable[[], None]
    again: Callable[[], dist.Work] | None = None


class ShardedModule:
    """One stage whose parameters are shards over the processes of ``group``, until ``close``.

    ``timeout``: how long gathering may take on a CPU; on GPUs it is the patience of the shards' own
    group. Raises InputError, naming the ``stage``, for a module that is sharded in part or over
    other processes.
    """

    def __init__(
        self,
        stage: int,
        module: nn.Module,
        group: dist.ProcessGroup,
        timeout: timedelta,
        faults: ReplicaFaults | None = None,
    ) -> None:
        from torch.distributed.fsdp import FSDPModule

        self._stage, self._group, self._timeout, self._faults = stage, group, timeout, faults
        self._device = device_of([module]).type
        self._parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
        _check_whole(stage, module, self._parts)
        for part in self._parts:
            _check_policy(stage, part)
        for part in self._parts:
            part._get_fsdp_state()._lazy_init()  # what a root says of itself changes here
        self._own = [setting for part in self._parts for setting in _settings(part)]
        for part in self._parts:
            part.set_requires_gradient_sync(False, recurse=False)
            part.set_reshard_after_forward(False, recurse=False)
            part.set_reshard_after_backward(False, recurse=False)
        self._unshard()
        self.whole = list(module.parameters())
        self._release()
        each = (p for part in self._parts for p in sharded_parameters(part))
        found = [*{id(p.shard): p for p in each}.values()]  # parts wrapped together share theirs
        self._trained = [p for p in found if p.shard.requires_grad]
        self._frozen = {p.name: p.shard for p in found if not p.shard.requires_grad}
        self._grad_dtypes = [p.whole.grad_dtype for p in self._trained]
        try:
            for parameter in found:
                _check_processes(stage, parameter, group)
        except InputError:
            self.close()
            raise
        for parameter in self._trained:  # lower precisions are for computing, not for sums
            parameter.whole.grad_dtype = parameter.shard.dtype

    def gather(self) -> None:
        """Gathers the parameters before a step, as they were stepped last.

        Raises ConnectionError where that takes too long, InputError where one is no longer frozen.
        """
        check_frozen(self._frozen, "where they are in fully_shard")
        self._forget_forward()
        self.release()
        self._unshard()

    def _forget_forward(self) -> None:
        """A forward that raised has left the hooks within it, where nothing is released."""
        for part in self._parts:
            for each in (part._get_fsdp_state(), *parameter_groups(part)):
                each._training_state = type(each._training_state).IDLE

    def release(self) -> None:
        """Lets go of the whole parameters and their gradients."""
        self._release()
        for parameter in self._trained:
            parameter.whole.grad = None

    def close(self) -> None:
        """Gives the module back to ``fully_shard``, whose hooks gather, reduce and release it."""
        self._release()
        for parameter, grad_dtype in zip(self._trained, self._grad_dtypes, strict=True):
            parameter.whole.grad = None
            parameter.whole.grad_dtype = grad_dtype
        for owner, name, value in self._own:
            setattr(owner, name, value)

    @torch.no_grad()
    def scatter(self, dtype: torch.dtype | None) -> list[Sum]:
        """Sends the sums of all gradients and lets go of the whole parameters; returns at once.

        ``dtype``: that in which gradients are sent, by default their own. Of what is returned each
        makes the gradient of some shards once it is waited for.
        """
        lay_out(p.whole for p in self._trained)
        rows = [p.rows(gradient_of(p.whole)) for p in self._trained]
        self._release()
        together: dict[tuple[Any, ...], list[int]] = {}
        for i, parameter in enumerate(self._trained):
            parameter.whole.grad = None
            key = parameter.group, parameter.copies, parameter.divisor
            together.setdefault(key, []).append(i)
        return [
            self._scatter([self._trained[i] for i in chosen], [rows[i] for i in chosen], dtype)
            for chosen in together.values()
        ]

    def _scatter(
        self,
        parameters: Sequence[ShardedParameter],
        rows: Sequence[Tensor],
        dtype: torch.dtype | None,
    ) -> Sum:
        """Starts the sum of parameters' gradients that are sharded over the same processes and
        divided alike."""
        group, copies = parameters[0].group, parameters[0].copies
        sent = torch.cat(list(rows), dim=1)  # in a dtype that holds all of theirs
        sent = sent.to(dtype or sent.dtype)
        came = torch.empty(sent.shape[1], dtype=sent.dtype, device=sent.device)
        work = _reduce_scatter(came, sent.flatten(), group=group, async_op=True)
        assert work is not None
        sizes = [row.shape[1] for row in rows]
        again = None if copies is None else partial(_all_reduce, came, copies)
        return Sum(work, partial(self._take, parameters, came, sizes), again)

    @torch.no_grad()
    def _take(
        self, parameters: Sequence[ShardedParameter], came: Tensor, sizes: Sequence[int]
    ) -> None:
        came.div_(parameters[0].divisor or self._group.size())
        for parameter, row in zip(parameters, torch.split(came, list(sizes)), strict=True):
            parameter.add_row(row)

    def _unshard(self) -> None:
        under_way = [part.unshard(async_op=True) for part in self._parts]
        if self._device == "cpu":  # on a GPU a wait with a timeout would block the host
            for work in (work for part in self._parts for work in _gathering(part)):
                what = f"gathering the shards of stage {self._stage}{REPLICAS}"
                wait_for(work, self._timeout, what, self._faults)
        for handle in under_way:
            if handle is not None:
                handle.wait()

    def _release(self) -> None:
        for part in self._parts:
            part.reshard()


class ShardedStages(StageStore):
    """Stages of which some are sharded over ``group``, waited for ``seconds`` at most on a CPU."""

    resident = False

    def __init__(
        self,
        modules: Mapping[int, nn.Module],
        group: dist.ProcessGroup,
        seconds: float,
        faults: ReplicaFaults | None = None,
    ) -> None:
        super().__init__(modules)
        self._group, self._timeout = group, timedelta(seconds=seconds)
        self.sharded: dict[int, ShardedModule] = {}
        with ExitStack() as held:  # where one cannot be taken, the others are given back
            for s, module in modules.items():
                if is_sharded(module):
                    self.sharded[s] = ShardedModule(s, module, group, self._timeout, faults)
                    held.callback(self.sharded[s].close)
            self._held = held.pop_all()

    def parameters(self, stage: int) -> Sequence[nn.Parameter]:
        sharded = self.sharded.get(stage)
        return super().parameters(stage) if sharded is None else sharded.whole

    def gather(self) -> None:
        for sharded in self.sharded.values():
            sharded.gather()

    def release(self) -> None:
        for sharded in self.sharded.values():
            sharded.release()

    def close(self) -> None:
        """Gives the modules back to ``fully_shard``."""
        self._held.close()


def resident_stages(
    modules: Mapping[int, nn.Module],
    group: dist.ProcessGroup | None,
    seconds: float,
    faults: ReplicaFaults | None = None,
) -> StageStore:
    """The store of modules as they are, of which some may be sharded over ``group``.

    ``seconds``: for which shards wait for those of other processes, of which ``faults`` tells.
    Raises InputError for sharded stages without a group.
    """
    sharded = [s for s, module in modules.items() if is_sharded(module)]
    if not sharded:
        return StageStore(modules)
    if group is None:
        raise InputError(
            f"data_group: expected the processes that have shards of stage {sharded[0]}, got None"
        )
    return ShardedStages(modules, group, seconds, faults)


def _settings(part: FSDPModule) -> list[tuple[Any, str, Any]]:
    """The settings of one part by ``fully_shard``, each with what has it and its name: whether it
    reduces, and when it releases. torch has calls that set them, none that tell them."""
    owners = [(group, name) for group in parameter_groups(part) for name in SET]
    owners.append((part._get_fsdp_state(), "_auto_reshard_after_forward"))
    return [(owner, name, getattr(owner, name)) for owner, name in owners]


def _gathering(part: FSDPModule) -> list[dist.Work]:
    """The gathers of the part's parameters that are under way."""
    results = [group._all_gather_result for group in parameter_groups(part)]
    return [r.all_gather_work for r in results if r and isinstance(r.all_gather_work, dist.Work)]


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """The parameter's gradient, made of :data:`~.unused_parameters.NOTHING` where it has none."""
    if parameter.grad is None:
        dtype = parameter.grad_dtype or parameter.dtype
        parameter.grad = torch.full_like(parameter, nothing(dtype), dtype=dtype)
    return parameter.grad


def _all_reduce(tensor: Tensor, group: dist.ProcessGroup) -> dist.Work:
    work: dist.Work | None = dist.all_reduce(tensor, group=group, async_op=True)
    assert work is not None
    return work


def _check_whole(stage: int, module: nn.Module, parts: Sequence[FSDPModule]) -> None:
    groups = [group for part in parts for group in parameter_groups(part)]
    sharded = {id(parameter.sharded_param) for group in groups for parameter in group.fsdp_params}
    for name, parameter in module.named_parameters():
        if id(parameter) not in sharded:
            raise InputError(
                f"stages[{stage}]: expected fully_shard on the stage itself, after its parts: "
                f"{name} is not sharded"
            )


def _check_processes(stage: int, parameter: ShardedParameter, group: dist.ProcessGroup) -> None:
    """Raises InputError where a parameter is not sharded over ``group``; processes that
    ``fully_shard`` leaves out must have other parts of it, as experts' do."""
    data, own = set(dist.get_process_group_ranks(group)), set(parameter.processes)
    mesh = parameter.shard.device_mesh
    apart = own < data and any(
        placement.is_replicate()
        for i, placement in enumerate(parameter.shard.placements)
        if not own & set(dist.get_process_group_ranks(mesh.get_group(i))) - {dist.get_rank()}
    )
    if apart or not own <= data <= set(mesh.mesh.flatten().tolist()):
        raise InputError(
            f"stages[{stage}]: {parameter.name}: expected fully_shard over the processes of "
            f"data_group, {sorted(data)}, got {sorted(own)}"
        )


def _check_policy(stage: int, part: FSDPModule) -> None:
    """The hooks would cast gradients to another dtype, and keep them where nobody looks."""
    policy = part._get_fsdp_state()._mp_policy
    own = {p.dtype for p in cast("nn.Module", part).parameters()}
    if policy.reduce_dtype not in (None, policy.param_dtype, *own):
        raise InputError(
            f"stages[{stage}]: mp_policy.reduce_dtype: expected that of the parameters or none, as "
            f"Pipeline's reduce_dtype says it, got {policy.reduce_dtype}"
        )
