"""What each stage sends on: found out once, before the first step, and fixed from then on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .errors import ShapeError
from .stages import StageStore
from .transport import Transport


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of one microbatch's tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Spec:
        return cls(tuple(tensor.shape), tensor.dtype)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def exchange_shapes(
    store: StageStore,
    owners: Sequence[int],
    inputs: Sequence[Tensor] | None,
    transport: Transport,
    device: torch.device,
) -> list[Spec]:
    """The output of every stage but the last; each is run once, without gradients.

    ``owners``: the rank that runs each stage on microbatch 0; ``inputs``: microbatch 0, on the
    first stage's owner. Random numbers and the modules' buffers are as before afterwards.
    """
    specs: list[Spec] = []
    for stage, owner in enumerate(owners[:-1]):
        spec = None
        if owner == transport.rank:
            previous = specs[-1] if specs else None
            with store.trying(stage):
                spec = _try(store.module(stage), stage, _arguments(previous, inputs, device))
        found = transport.share(spec, owner)
        if isinstance(found, ShapeError):
            raise found
        specs.append(found)
    return specs


def _arguments(
    previous: Spec | None, inputs: Sequence[Tensor] | None, device: torch.device
) -> Sequence[Tensor]:
    if previous is not None:
        return (torch.zeros(previous.shape, dtype=previous.dtype, device=device),)
    assert inputs is not None, "the first stage's rank has the inputs"
    return inputs


def _try(module: nn.Module, stage: int, arguments: Sequence[Tensor]) -> Spec | ShapeError:
    """The output's spec, or the error that every rank is to raise."""
    kept = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        with torch.no_grad(), torch.random.fork_rng(_cuda(arguments)):
            output = module(*arguments)
    except Exception as error:
        given = ", ".join(str(Spec.of(a)) for a in arguments)
        return ShapeError(f"stage {stage} does not run on {given}: {type(error).__name__}: {error}")
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
    if not (isinstance(output, Tensor) and output.is_floating_point()):
        what = Spec.of(output) if isinstance(output, Tensor) else type(output).__name__
        return ShapeError(f"stage {stage}: expected one tensor of a floating dtype, got {what}")
    return Spec.of(output)


def _cuda(tensors: Sequence[Tensor]) -> list[torch.device]:
    return sorted({t.device for t in tensors if t.device.type == "cuda"}, key=str)
