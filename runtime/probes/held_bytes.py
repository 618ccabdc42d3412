"""Bytes of a stage on a device besides activations: weights, gradients, optimizer state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..dtensors import local, parts
from ..optim.optimizer_state import entries
from ..stages.store import StageStore
from ..stages.streamed_weights import StreamedStages


def held_bytes(
    store: StageStore, stage: int, optimizer: torch.optim.Optimizer | None
) -> dict[str, int]:
    """Returns the bytes of one stage on this device outside of steps, by keys of a stage's profile.

    Of sharded tensors, only this device's part counts. Stages wrapped in ``fully_shard`` count
    their shards and, as during a step, whole parameters and gradients; stages that are computed in
    another dtype count both dtypes. ``optimizer``: the stage's own; parameters that it has not
    stepped count with the state that they will have. Sharded stages free their whole parameters.
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
    if optimizer is not None:
        states = [value for *_, state in entries(optimizer) for value in state.values()]
        found["optimizer_bytes"] = sum(local_bytes(x) for x in states if isinstance(x, Tensor))
    return found if grad else {**found, "optimizer_bytes": 0}


def local_bytes(tensor: Tensor) -> int:
    """Returns the bytes on this device; for a DTensor, those of its shard."""
    return sum(part.nbytes for part in parts(local(tensor.detach())))


def _gradient_bytes(parameter: nn.Parameter) -> int:
    """Returns the bytes of the gradient, whose dtype may differ from the parameter's."""
    dtype = getattr(parameter, "grad_dtype", None) or parameter.dtype
    return local_bytes(parameter) // parameter.dtype.itemsize * dtype.itemsize
