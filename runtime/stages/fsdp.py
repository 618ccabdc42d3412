"""Stages wrapped in torch's ``fully_shard``: gathered for a step, their gradients scattered after
it.

::

    between steps   each process has its shard of parameters, gradients and optimizer state
    step begins     all parameters are gathered, once
    F, B, W         compute with whole parameters; gradients add up whole, none is reduced
    average s       the sum of stage s leaves, its parameters go; a shard of the average comes back

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

from .gradient_shards import add_row, rows_of, shards_of
from .gradient_squares import squares, summed, wait_for
from .store import ResidentStages, device_of
from .unused_parameters import NOTHING

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


class ShardedModule:
    """One stage whose parameters are shards over the processes of ``group``, until ``close``.

    ``timeout``: how long gathering may take on a CPU; on GPUs it is the patience of the shards' own
    group. Raises InputError, naming the ``stage``, for a module that is sharded in part, over other
    processes, or along more than one dimension of a mesh.
    """

    def __init__(
        self, stage: int, module: nn.Module, group: dist.ProcessGroup, timeout: timedelta
    ) -> None:
        from torch.distributed.fsdp import FSDPModule

        _check(stage, module, group)
        self._stage, self._group, self._timeout = stage, group, timeout
        self._device = device_of([module]).type
        self._parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
        for part in self._parts:
            _check_policy(stage, part)
        for part in self._parts:
            part._get_fsdp_state()._lazy_init()  # what a root says of itself changes here
        self._own = [_Own.of(part) for part in self._parts]
        for part in self._parts:
            part.set_requires_gradient_sync(False, recurse=False)
            part.set_reshard_after_forward(False, recurse=False)
            part.set_reshard_after_backward(False, recurse=False)
        self._unshard()
        self.whole = list(module.parameters())
        self.release()
        self._pairs = [
            (sharded, whole)
            for sharded, whole in zip(shards_of(module), self.whole, strict=True)
            if sharded.requires_grad
        ]
        self._grad_dtypes = [whole.grad_dtype for _, whole in self._pairs]
        for sharded, whole in self._pairs:
            whole.grad_dtype = sharded.dtype  # lower precisions are for computing, not for sums

    def gather(self) -> None:
        """Before a step: the parameters are whole, and as they were stepped last.

        Raises ConnectionError where that takes too long.
        """
        self.release()
        self._unshard()
        for _, whole in self._pairs:
            whole.grad = None

    def close(self) -> None:
        """Gives the module back to ``fully_shard``, whose hooks gather, reduce and release it."""
        self.release()
        for (_, whole), grad_dtype in zip(self._pairs, self._grad_dtypes, strict=True):
            whole.grad = None
            whole.grad_dtype = grad_dtype
        for own in self._own:
            own.restore()

    @torch.no_grad()
    def scatter(self, dtype: torch.dtype | None) -> tuple[dist.Work, Callable[[], None]] | None:
        """Sends the sums of all gradients and lets go of the whole parameters; returns at once.

        ``dtype``: that in which gradients are sent, by default their own. What is returned is under
        way, and the call that makes it the shards' gradient once it is waited for; None where
        nothing is trained.
        """
        if not self._pairs:
            return None
        parts = self._group.size()
        rows = [rows_of(gradient_of(whole), shard, parts) for shard, whole in self._pairs]
        self.release()
        for _, whole in self._pairs:
            whole.grad = None
        sent = torch.cat(rows, dim=1).to(dtype or rows[0].dtype)
        came = torch.empty(sent.shape[1], dtype=sent.dtype, device=sent.device)
        work = _reduce_scatter(came, sent.flatten(), group=self._group, async_op=True)
        assert work is not None
        return work, partial(self._take, came, [row.shape[1] for row in rows])

    @torch.no_grad()
    def _take(self, came: Tensor, sizes: Sequence[int]) -> None:
        came.div_(self._group.size())
        for (shard, _), part in zip(self._pairs, torch.split(came, list(sizes)), strict=True):
            add_row(shard, part)

    def _unshard(self) -> None:
        under_way = [part.unshard(async_op=True) for part in self._parts]
        if self._device == "cpu":  # on a GPU a wait with a timeout would block the host
            for work in (work for part in self._parts for work in _gathering(part)):
                wait_for(
                    work, self._timeout, f"gathering the shards of stage {self._stage}{REPLICAS}"
                )
        for handle in under_way:
            if handle is not None:
                handle.wait()

    def release(self) -> None:
        """Lets go of the whole parameters, of which the shards stay."""
        for part in self._parts:
            part.reshard()


class ShardedStages(ResidentStages):
    """Stages of which some are sharded over ``group``, waited for ``seconds`` at most on a CPU."""

    def __init__(
        self, modules: Mapping[int, nn.Module], group: dist.ProcessGroup, seconds: float
    ) -> None:
        super().__init__(modules)
        self._group, self._timeout = group, timedelta(seconds=seconds)
        self.sharded: dict[int, ShardedModule] = {}
        with ExitStack() as held:  # where one cannot be taken, the others are given back
            for s, module in modules.items():
                if is_sharded(module):
                    self.sharded[s] = ShardedModule(s, module, group, self._timeout)
                    held.callback(self.sharded[s].close)
            self._held = held.pop_all()

    def parameters(self, stage: int) -> Sequence[nn.Parameter]:
        sharded = self.sharded.get(stage)
        return super().parameters(stage) if sharded is None else sharded.whole

    def gather(self) -> None:
        for sharded in self.sharded.values():
            sharded.gather()

    def settle(self, stage: int) -> None:
        if stage in self.sharded:
            self.sharded[stage].release()

    def close(self) -> None:
        """Gives the modules back to ``fully_shard``."""
        self._held.close()

    @torch.no_grad()
    def squares(self, parameters: Sequence[nn.Parameter]) -> float:
        """The sum of the squares of the parameters' gradients, all shards of them included.

        Raises ConnectionError where the other shards' take too long.
        """
        from torch.distributed.tensor import DTensor

        found = [p.grad for p in parameters if p.grad is not None]
        shards = [g.to_local() for g in found if isinstance(g, DTensor)]
        device = parameters[0].device if parameters else torch.device("cpu")
        what = f"the norm of the gradients{REPLICAS}"
        mine = summed(squares(shards), self._group, device, self._timeout, what)
        return squares([g for g in found if not isinstance(g, DTensor)]) + mine


@dataclass(frozen=True, slots=True)
class _Own:
    """What ``fully_shard`` has said of one part: whether it reduces, and when it releases.

    torch has calls that set it, none that tell it.
    """

    state: Any
    automatic: bool | None
    groups: Sequence[tuple[Any, Mapping[str, Any]]]

    @classmethod
    def of(cls, part: FSDPModule) -> _Own:
        state = part._get_fsdp_state()
        groups = [(group, {name: getattr(group, name) for name in SET}) for group in _groups(part)]
        return cls(state, state._auto_reshard_after_forward, groups)

    def restore(self) -> None:
        self.state._auto_reshard_after_forward = self.automatic
        for group, values in self.groups:
            for name, value in values.items():
                setattr(group, name, value)


def _groups(part: FSDPModule) -> Sequence[Any]:
    """torch's groups of the part's parameters; there is one at most before torch has several."""
    state: Any = part._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return tuple(state._fsdp_param_groups)
    return () if state._fsdp_param_group is None else (state._fsdp_param_group,)


def _gathering(part: FSDPModule) -> list[dist.Work]:
    """What of the part's parameters is under way."""
    results = [group._all_gather_result for group in _groups(part)]
    return [r.all_gather_work for r in results if r and isinstance(r.all_gather_work, dist.Work)]


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Its gradient, made of :data:`~.unused_parameters.NOTHING` where it has none."""
    if parameter.grad is None:
        parameter.grad = torch.full_like(parameter, NOTHING, dtype=parameter.grad_dtype)
    return parameter.grad


def _check(stage: int, module: nn.Module, group: dist.ProcessGroup) -> None:
    from torch.distributed.tensor import DTensor

    processes = dist.get_process_group_ranks(group)
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, DTensor):
            raise InputError(
                f"stages[{stage}]: expected fully_shard on the stage itself, after its parts: "
                f"{name} is not sharded"
            )
        mesh = parameter.device_mesh
        if mesh.ndim != 1 or dist.get_process_group_ranks(mesh.get_group()) != processes:
            raise InputError(
                f"stages[{stage}]: {name}: expected shards over the processes of data_group, "
                f"{processes}, on a mesh of one dimension, got one of {mesh.mesh.tolist()}"
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
