"""Buffers of which several ranks or replicas have copies: they are saved with a single value.

Copies of a parameter start equal and get the same gradient. Copies of a buffer (such as a running
mean) are modified by the forwards of different microbatches. torch's ``DistributedDataParallel``
sets them to the first replica's in each forward; a pipeline does so when its ``state_dict`` is
created or loaded.
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
    """Sets all copies of each persistent buffer of a stage to the value of one copy.

    The copies are on all ranks that run or own the stage, in all replicas. The value is that of
    rank ``sources[stage]`` in the first replica. All ranks of all replicas call it.
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
    """Returns the distinct buffers in the module's ``state_dict``; of DTensors, the local part."""
    buffers = {id(buffer) for buffer in module.buffers()}
    saved = {id(v): v for v in module.state_dict(keep_vars=True).values() if id(v) in buffers}
    return [local(buffer.detach()) for buffer in saved.values()]
