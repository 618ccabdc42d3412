"""The factory of weight stores: by what is sent, how they compute, and who has shards of
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.transfers import holders

from ..dtensors import is_dtensor
from ..transport import ReplicaFaults
from ..transport.thread_rank import here
from .fsdp import ShardedStages, is_sharded
from .store import ResidentStages, StageStore
from .streamed_weights import StreamedStages
from .tie_detection import Group


def make_store(
    modules: Mapping[int, nn.Module],
    program: Program,
    rank: int,
    device: torch.device,
    *,
    param_dtype: torch.dtype | None,
    reduce_dtype: torch.dtype | None,
    tied: Sequence[Group],
    data_group: dist.ProcessGroup | None,
    timeout: float,
    faults: ReplicaFaults | None = None,
) -> StageStore:
    """Modules as they are where no weights are sent, none are cast and none sharded.

    ``timeout``: seconds that shards wait for those of other processes, of which ``faults`` tells.
    Raises InputError for sharded stages that cannot be run.
    """
    _check_threads(modules)
    sharded = [s for s, module in modules.items() if is_sharded(module)]
    if sharded:
        _check_sharded(sharded[0], program, param_dtype, tied)
        if data_group is None:
            raise InputError(
                f"data_group: expected the processes that have shards of stage {sharded[0]}, got "
                "None"
            )
        return ShardedStages(modules, data_group, timeout, faults)
    if not program.schedule.transfers and param_dtype is None:
        return ResidentStages(modules)
    return StreamedStages(
        modules,
        program.schedule,
        rank,
        device,
        param_dtype=param_dtype,
        reduce_dtype=reduce_dtype,
    )


def _check_threads(modules: Mapping[int, nn.Module]) -> None:
    for s, module in modules.items():
        for name, parameter in module.named_parameters():
            if here() is not None and is_dtensor(parameter):
                raise InputError(
                    f"stages[{s}]: {name} is a DTensor: expected ranks that are processes, got "
                    "thread ranks, which would all be one process of its mesh"
                )


def _check_sharded(
    stage: int,
    program: Program,
    param_dtype: torch.dtype | None,
    tied: Sequence[Group],
) -> None:
    where = f"stages[{stage}]: it is wrapped in fully_shard: "
    if program.schedule.transfers:
        raise InputError(f"{where}expected a program that sends activations")
    if param_dtype is not None:
        raise InputError(
            f"{where}expected its mp_policy to say in what it computes, got param_dtype "
            f"{param_dtype}"
        )
    if tied:
        raise InputError(f"{where}expected no tied parameters, got {list(tied)}")
    if any(len(ranks) > 1 for ranks in holders(program.schedule)):
        raise InputError(f"{where}expected a program in which each stage is on one rank")
