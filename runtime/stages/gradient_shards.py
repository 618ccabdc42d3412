"""A whole gradient cut into the shards of ``fully_shard``, and what comes back added to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:  # takes a second to import, and whoever has shards has done so
    from torch.distributed.tensor import DTensor


def shards_of(module: nn.Module) -> list[DTensor]:
    from torch.distributed.tensor import DTensor

    return [p for p in module.parameters() if isinstance(p, DTensor)]


def _dimension(shard: DTensor) -> int:
    from torch.distributed.tensor import Shard

    (placement,) = shard.placements
    assert isinstance(placement, Shard)
    return placement.dim


def rows_of(gradient: Tensor, shard: DTensor, parts: int) -> Tensor:
    """(parts, elements): what goes to each process, all filled up with zeros to the length of the
    first."""
    whole = gradient.movedim(_dimension(shard), 0)
    missing = -len(whole) % parts
    if missing:
        whole = torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])])
    return whole.reshape(parts, -1)


def add_row(shard: DTensor, row: Tensor) -> None:
    """Adds a row of what :func:`rows_of` makes to the shard's gradient."""
    from torch.distributed.tensor import DTensor

    dim, own = _dimension(shard), shard.to_local()
    rest = own.movedim(dim, 0).shape[1:]
    local = row.view(-1, *rest)[: own.shape[dim]].movedim(0, dim).to(own.dtype)
    if isinstance(shard.grad, DTensor):
        shard.grad.to_local().add_(local)
        return
    shard.grad = DTensor.from_local(
        local.contiguous(),
        shard.device_mesh,
        shard.placements,
        run_check=False,
        shape=shard.shape,
        stride=shard.stride(),
    )
