"""Bytes of a stage on a device besides activations: weights, gradients, optimizer state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..dtensors import local, parts
from ..rank.options import MakeOptimizer
from ..stages.store import StageStore
from ..stages.streamed_weights import StreamedStages


def held_bytes(
    store: StageStore,
    stage: int,
    make: MakeOptimizer | None,
    optimizer: torch.optim.Optimizer | None = None,
) -> dict[str, int]:
    """Returns the bytes of one stage on this device outside of steps, by keys of a stage's profile.

    Of sharded tensors, only this device's part counts. Stages wrapped in ``fully_shard`` count
    their shards and, as during a step, whole parameters and gradients; stages that are computed in
    another dtype count both dtypes. ``optimizer``: the stage's own, whose state counts if it has
    any. Otherwise, ``make`` creates an optimizer for each parameter, and its state after one step
    counts. Sharded stages free their whole parameters.
    """
    store.release()
    whole = list(store.parameters(stage))
    shards = list(store.module(stage).parameters())
    parameters = list({id(p): p for p in (*shards, *whole)}.values())
    weight = sum(map(local_bytes, parameters))
    if isinstance(store, StreamedStages) and store.precision.mixed:
        weight += weight // store.precision.master.itemsize * store.precision.param.itemsize
    grad = sum(_gradient_bytes(p) for p in parameters if p.requires_grad)
    found = {"weight_bytes": weight, "grad_bytes": grad}
    if optimizer is not None and optimizer.state:
        found["optimizer_bytes"] = _bytes(optimizer.state.values())
    elif make is not None:
        found["optimizer_bytes"] = sum(_state_bytes(p, make) for p in shards if p.requires_grad)
    return found


def local_bytes(tensor: Tensor) -> int:
    """Returns the bytes on this device; for a DTensor, those of its shard."""
    return sum(part.nbytes for part in parts(local(tensor.detach())))


def _gradient_bytes(parameter: nn.Parameter) -> int:
    """Returns the bytes of the gradient, whose dtype may differ from the parameter's."""
    dtype = getattr(parameter, "grad_dtype", None) or parameter.dtype
    return local_bytes(parameter) // parameter.dtype.itemsize * dtype.itemsize


def _state_bytes(parameter: nn.Parameter, make: MakeOptimizer) -> int:
    """Returns the bytes of optimizer state after a step on a copy of the parameter."""
    one = nn.Parameter(parameter.detach().clone())
    one.grad = torch.zeros_like(one)
    optimizer = make([one])
    optimizer.step()
    return _bytes(optimizer.state.values())


def _bytes(states: Iterable[Mapping[str, object]]) -> int:
    tensors: Sequence[Tensor] = [
        value for state in states for value in state.values() if isinstance(value, Tensor)
    ]
    return sum(map(local_bytes, tensors))
