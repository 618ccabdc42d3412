"""Stages wrapped in torch's ``fully_shard``: gathered and reduced once per step.

::

    between steps   each process has its shard of parameters, gradients and optimizer state
    step begins     all parameters are gathered, once
    F, B, W         compute with whole parameters; gradients add up unsharded and unreduced
    average s       torch reduces the gradients of stage s to shards of the average (or of the sum
                    divided by set_gradient_divide_factor), and frees the whole parameters

While a pipeline has the stages, the hooks of ``fully_shard`` are disabled: they would reduce
gradients in each microbatch's backward pass, before the deferred weight gradients are computed.
``close`` enables them again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from pipeloom.ir.errors import InputError

from ..transport import wait_for
from .gradients import gradient_of
from .store import StageStore, check_frozen, device_of

if TYPE_CHECKING:  # slow to import (about 1 s); only needed if the caller has wrapped a module
    from torch.distributed.fsdp import FSDPModule

SET = (
    "reduce_grads", "all_reduce_grads", "reshard_after_backward", "post_forward_mesh_info",
    "gradient_divide_factor", "force_sum_reduction_for_comms", "_reduce_dtype",
)  # fmt: skip
"""Attributes of torch's parameter groups that a pipeline changes, and restores when it closes."""


def is_sharded(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was called on the module or on a submodule."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(m, fsdp.FSDPModule) for m in module.modules())


def parameter_groups(part: FSDPModule) -> tuple[Any, ...]:
    """Returns torch's parameter groups of ``part``."""
    state: Any = part._get_fsdp_state()
    return tuple(state._fsdp_param_groups)


class ShardedModule:
    """One stage whose parameters are sharded over the processes of ``group``.

    ``whole``: the gathered parameters. ``timeout``: the time limit for gathering on a CPU; on GPUs,
    the timeout of the shards' own process group applies. Raises InputError, which names the
    ``stage``, for a module that is sharded only in part or over other processes. ``close`` restores
    the module.
    """

    def __init__(
        self, stage: int, module: nn.Module, group: dist.ProcessGroup, timeout: timedelta
    ) -> None:
        from torch.distributed.fsdp import FSDPModule

        self._stage, self._timeout = stage, timeout
        self._device = device_of([module]).type
        self._parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
        self._states: list[Any] = [part._get_fsdp_state() for part in self._parts]
        each = (found for part in self._parts for found in parameter_groups(part))
        self._groups = [*{id(found): found for found in each}.values()]  # parts may share a group
        every = [parameter for found in self._groups for parameter in found.fsdp_params]
        _check_whole(stage, module, every)
        for state in self._states:
            state._lazy_init()  # determines the root modules
        owners = [(found, name) for found in self._groups for name in SET]
        owners += [(state, "_auto_reshard_after_forward") for state in self._states]
        self._own = [(owner, name, getattr(owner, name)) for owner, name in owners]
        for part in self._parts:
            part.set_requires_gradient_sync(False, recurse=False)
            part.set_reshard_after_forward(False, recurse=False)
            part.set_reshard_after_backward(False, recurse=False)
            part.set_force_sum_reduction_for_comms(True)
        self._divisors = [g.gradient_divide_factor or group.size() for g in self._groups]
        for found in self._groups:  # torch would divide twice in a group of one process
            found.gradient_divide_factor = 1.0
        self._unshard()
        self.whole = list(module.parameters())
        self._reshard()
        trained = [p for p in every if p.sharded_param.requires_grad]
        self._trained = {p: p._unsharded_param.grad_dtype for p in trained}  # for close to restore
        shards = {p._param_fqn: p.sharded_param for p in every}
        self._frozen = {name: p for name, p in shards.items() if not p.requires_grad}
        try:
            for parameter in every:
                _check_processes(stage, parameter, group)
        except InputError:
            self.close()
            raise
        for parameter in self._trained:  # accumulate in the parameters' own dtype
            parameter._unsharded_param.grad_dtype = parameter.sharded_param.dtype

    def gather(self) -> None:
        """Gathers the current parameters before a step.

        Raises ConnectionError after the timeout, and InputError if a parameter was frozen when the
        pipeline was created and is now trained.
        """
        check_frozen(self._frozen, "where they are in fully_shard")
        for each in (*self._states, *self._groups):  # a failed forward leaves them in another state
            each._training_state = type(each._training_state).IDLE
        self.release()
        self._unshard()

    def release(self) -> None:
        """Frees the gathered parameters and their gradients; the shards stay."""
        self._reshard()
        for parameter in self._trained:
            parameter._unsharded_param.grad = parameter.unsharded_accumulated_grad = None

    def close(self) -> None:
        """Enables the hooks of ``fully_shard`` again."""
        self.release()
        for parameter, grad_dtype in self._trained.items():
            parameter._unsharded_param.grad_dtype = grad_dtype
        for owner, name, value in self._own:
            setattr(owner, name, value)

    @torch.no_grad()
    def reduce(self, dtype: torch.dtype | None) -> None:
        """Starts to reduce all gradients to those of the shards; frees the gathered parameters.

        On a GPU, the reduction continues until :meth:`finish`. ``dtype``: the dtype in which
        gradients are sent; by default, that of the ``fully_shard`` policy or the gradients' own.
        """
        for found, divisor in zip(self._groups, self._divisors, strict=True):
            for parameter in self._trained.keys() & {*found.fsdp_params}:
                gradient_of(parameter._unsharded_param).div_(divisor)
                if parameter.unsharded_accumulated_grad is not None:
                    parameter.unsharded_accumulated_grad.div_(divisor)
            found._reduce_dtype = dtype or found._reduce_dtype
            found.reduce_grads = found.all_reduce_grads = True
            found.post_backward()
            found.reduce_grads = found.all_reduce_grads = False
        self.release()

    def finish(self) -> None:
        """Makes the current stream wait until the gradients of the shards are reduced."""
        for state in self._states:
            if state._is_root:
                state._root_post_backward_final_callback()

    def _unshard(self) -> None:
        under_way = [part.unshard(async_op=True) for part in self._parts]
        if self._device == "cpu":  # on a GPU, a wait with a timeout would block the host
            results = [found._all_gather_result for found in self._groups]
            for work in [result.all_gather_work for result in results if result]:
                if isinstance(work, dist.Work):
                    what = f"gathering the shards of stage {self._stage} over the replicas"
                    wait_for(work, self._timeout, what)
        for handle in under_way:
            if handle is not None:
                handle.wait()

    def _reshard(self) -> None:
        for part in self._parts:
            part.reshard()


class ShardedStages(StageStore):
    """Stages of which some are sharded over ``group``.

    ``seconds``: the time limit of each wait for other processes on a CPU.
    """

    resident = False

    def __init__(
        self, modules: Mapping[int, nn.Module], group: dist.ProcessGroup, seconds: float
    ) -> None:
        super().__init__(modules)
        self.sharded: dict[int, ShardedModule] = {}
        with ExitStack() as held:  # if one raises, close the others
            for s, module in modules.items():
                if is_sharded(module):
                    timeout = timedelta(seconds=seconds)
                    self.sharded[s] = ShardedModule(s, module, group, timeout)
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
        """Enables the hooks of ``fully_shard`` again."""
        self._held.close()


def resident_stages(
    modules: Mapping[int, nn.Module], group: dist.ProcessGroup | None, seconds: float
) -> StageStore:
    """Returns the store of stages whose weights stay on this rank, or are sharded over ``group``.

    ``seconds``: the time limit of each wait for shards of other processes. Raises InputError for
    sharded stages without a ``group``.
    """
    sharded = [s for s, module in modules.items() if is_sharded(module)]
    if not sharded:
        return StageStore(modules)
    if group is None:
        raise InputError(
            f"data_group: expected the processes that have shards of stage {sharded[0]}, got None"
        )
    return ShardedStages(modules, group, seconds)


def _check_whole(stage: int, module: nn.Module, parameters: Sequence[Any]) -> None:
    sharded = {id(parameter.sharded_param) for parameter in parameters}
    for name, parameter in module.named_parameters():
        if id(parameter) not in sharded:
            raise InputError(
                f"stages[{stage}]: expected fully_shard on the stage itself, after its parts: "
                f"{name} is not sharded"
            )


def _check_processes(stage: int, parameter: Any, group: dist.ProcessGroup) -> None:
    """Raises InputError if a parameter is not sharded over ``group``.

    ``fully_shard`` may shard it over some processes of ``group`` only if the other processes have
    different parts of it, as with expert parallelism.
    """
    shard = parameter.sharded_param
    data = set(dist.get_process_group_ranks(group))
    own = set(parameter.mesh_info.mesh.mesh.flatten().tolist())
    mesh = shard.device_mesh
    apart = own < data and any(
        placement.is_replicate()
        for i, placement in enumerate(shard.placements)
        if not own & set(dist.get_process_group_ranks(mesh.get_group(i))) - {dist.get_rank()}
    )
    if apart or not own <= data <= set(mesh.mesh.flatten().tolist()):
        raise InputError(
            f"stages[{stage}]: {parameter._param_fqn}: expected fully_shard over the processes of "
            f"data_group, {sorted(data)}, got {sorted(own)}"
        )
