"""What a device holds of a stage beside activations: weights, gradients, optimizer state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..dtensors import local, parts
from ..rank.options import MakeOptimizer
from ..stages.fsdp import ShardedStages
from ..stages.store import StageStore


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes of one stage on one device; ``optimizer``: None where nobody says which it is.

    Of tensors that are shards, this device's. Stages wrapped in ``fully_shard`` have their shards
    and, as in a step, whole parameters and gradients.
    """

    weight: int
    grad: int
    optimizer: int | None


def held_bytes(
    store: StageStore,
    stage: int,
    make: MakeOptimizer | None,
    optimizer: torch.optim.Optimizer | None = None,
) -> HeldBytes:
    """``optimizer``: the stage's own, whose state counts if it has any; else that which one step of
    one that is made for each parameter leaves behind. Sharded stages let go of whole parameters."""
    if isinstance(store, ShardedStages):
        store.release()
    whole = list(store.parameters(stage))
    shards = list(store.module(stage).parameters())
    parameters = list({id(p): p for p in (*shards, *whole)}.values())
    trained = [p for p in parameters if p.requires_grad]
    state = None
    if optimizer is not None and optimizer.state:
        state = _bytes(optimizer.state.values())
    elif make is not None:
        state = sum(_state_bytes(p, make) for p in shards if p.requires_grad)
    return HeldBytes(sum(map(local_bytes, parameters)), sum(map(local_bytes, trained)), state)


def local_bytes(tensor: Tensor) -> int:
    """Those that are on this device: of a DTensor its shard's."""
    return sum(part.nbytes for part in parts(local(tensor.detach())))


def _state_bytes(parameter: nn.Parameter, make: MakeOptimizer) -> int:
    """What a step leaves behind, of a copy: the parameter stays as it is."""
    copy = nn.Parameter(parameter.detach().clone())
    copy.grad = torch.zeros_like(copy)
    optimizer = make([copy])
    optimizer.step()
    return _bytes(optimizer.state.values())


def _bytes(states: Iterable[Mapping[str, object]]) -> int:
    tensors: Sequence[Tensor] = [
        value for state in states for value in state.values() if isinstance(value, Tensor)
    ]
    return sum(map(local_bytes, tensors))
