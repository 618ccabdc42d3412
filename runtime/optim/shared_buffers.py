"""Buffers of which there are several copies: one value in a state, as if a single rank had it.

Parameters start alike and get one gradient; buffers (running means, say) are changed by each copy's
forwards, of other microbatches. torch's ``DistributedDataParallel`` makes them the first replica's
in each forward, a pipeline when its state is made or loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..dtensors import local
from ..rank.context import RankContext
from .data_parallel import start_equal


@torch.no_grad()
def share_buffers(context: RankContext, sources: Sequence[int]) -> None:
    """Makes the persistent buffers of each stage, on all ranks that run or hold it and in all
    replicas, those of the rank ``sources[stage]`` of the first replica. All of them call it.
    """
    role, group = context.role, context.options.data_group
    for stage, source in enumerate(sources):
        ranks = {*role.users[stage], *role.holders[stage]}
        own = _persistent(context.store.module(stage)) if role.rank in ranks else []
        if len(ranks) > 1:
            mine = [b.cpu() for b in own] if role.rank == source else None
            values = context.transport.share(mine, source)
            for buffer, value in zip(own, values if own else [], strict=True):
                buffer.copy_(value)
        if group is not None:
            start_equal(own, group)


def _persistent(module: nn.Module) -> list[Tensor]:
    """This process's part of each buffer in the module's state, each once."""
    buffers = {id(buffer) for buffer in module.buffers()}
    saved = {id(v): v for v in module.state_dict(keep_vars=True).values() if id(v) in buffers}
    return [local(buffer.detach()) for buffer in saved.values()]
