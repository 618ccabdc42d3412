"""A whole gradient cut into the shards of ``fully_shard``, and what comes back added to one.

Of a parameter that is a DTensor already, over a mesh of tensor parallel processes, it is this
process's part that is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..dtensors import like, local

if TYPE_CHECKING:  # takes a second to import, and whoever has shards has done so
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True, eq=False)
class ShardedParameter:
    """One parameter of a part: its ``shard`` on this process and, while it is gathered, the
    ``whole``, which is cut along ``dimension`` over the processes of ``group``.

    ``copies``: those that have the same shard (HSDP), None where there is no other;
    ``processes``: all that ``fully_shard`` was told of; ``divisor``: what their sum is divided by,
    None where nobody has set it.
    """

    name: str
    shard: DTensor
    whole: nn.Parameter
    dimension: int
    group: dist.ProcessGroup
    copies: dist.ProcessGroup | None
    processes: tuple[int, ...]
    divisor: float | None

    def rows(self, gradient: Tensor) -> Tensor:
        """(processes, elements): a row for each, padded with zeros to the first one's length."""
        whole, count = local(gradient).movedim(self.dimension, 0), self.group.size()
        missing = -len(whole) % count
        if missing:
            whole = torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])])
        return whole.reshape(count, -1)

    def add_row(self, row: Tensor) -> None:
        """Adds a row of what :meth:`rows` makes to the shard's gradient."""
        own = local(self.shard)
        rest = own.movedim(self.dimension, 0).shape[1:]
        rows = row.view(-1, *rest)[: own.shape[self.dimension]]
        part = rows.movedim(0, self.dimension).to(own.dtype)
        if self.shard.grad is None:
            self.shard.grad = like(self.shard, part.contiguous())
        else:
            local(self.shard.grad).add_(part)


def parameter_groups(part: FSDPModule) -> tuple[Any, ...]:
    """torch's groups of the part's parameters; there is one at most before torch has several."""
    state: Any = part._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return tuple(state._fsdp_param_groups)
    return () if state._fsdp_param_group is None else (state._fsdp_param_group,)


def sharded_parameters(part: FSDPModule) -> Iterator[ShardedParameter]:
    """The sharded parameters of a part, all of which has been gathered once. Raises AttributeError
    where it has no shards."""
    for group in parameter_groups(part):
        for parameter in group.fsdp_params:
            mesh = parameter.mesh_info
            yield ShardedParameter(
                parameter._param_fqn,
                parameter.sharded_param,
                parameter._unsharded_param,
                parameter.fsdp_placement.dim,
                mesh.shard_process_group,
                getattr(mesh, "replicate_process_group", None),
                tuple(mesh.mesh.mesh.flatten().tolist()),
                group.gradient_divide_factor,
            )
