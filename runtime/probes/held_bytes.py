"""The bytes of a stage on a device besides activations: weights, gradients, optimizer state."""

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
    """Returns the bytes of weights, gradients and optimizer state of ``stage`` on this device.

    The keys are those of a stage in a profile: ``weight_bytes``, ``grad_bytes`` and, if
    ``optimizer`` is given or no parameter is trained, ``optimizer_bytes``. A sharded tensor counts
    with only this device's part. But a stage wrapped in ``fully_shard`` counts with its shards as
    well as its whole parameters and gradients, as during a step, and one that is computed in
    another dtype with its weights in both dtypes. ``optimizer``: the stage's own; state that a
    parameter will have only after its first step counts, too. Must not be called during a step, as
    it releases gathered parameters.
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
    """Returns the bytes of ``tensor`` on this device; for a DTensor, those of its shard."""
    return sum(part.nbytes for part in parts(local(tensor.detach())))


def _gradient_bytes(parameter: nn.Parameter) -> int:
    """Returns the bytes that a gradient of ``parameter`` would occupy on this device.

    Its dtype may differ from that of ``parameter``.
    """
    dtype = getattr(parameter, "grad_dtype", None) or parameter.dtype
    return local_bytes(parameter) // parameter.dtype.itemsize * dtype.itemsize
