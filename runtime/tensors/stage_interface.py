"""The tensors that pass between a stage and the next, of which some want a gradient back.

One message carries them all. A single tensor is its own message; several are packed::

    stage 0 ──▶ (hidden float32[2, 8], mask bool[2, 8], skip float32[2, 4]) ──▶ stage 1
                 x1.0:   hidden │ mask │ skip          one message of bytes
                 dy0.0:  hidden'       │ skip'         no gradient of a mask
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from ..errors import ShapeError

ALIGNED = 64  # bytes: where a packed tensor may begin


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of one microbatch's tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Spec:
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of such a tensor."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class StageInterface:
    """A stage's outputs for one microbatch; ``needs_grad[i]``: the i-th has a gradient."""

    specs: tuple[Spec, ...]
    needs_grad: tuple[bool, ...]

    @classmethod
    def of(cls, outputs: Sequence[Tensor]) -> StageInterface:
        """The interface of a stage with these outputs."""
        return cls(tuple(map(Spec.of, outputs)), tuple(x.requires_grad for x in outputs))

    @classmethod
    def one(cls, spec: Spec) -> StageInterface:
        """One tensor that wants a gradient."""
        return cls((spec,), (True,))

    def fits(self, outputs: Sequence[Tensor]) -> bool:
        """Whether outputs are as specified; where gradients are off, whatever they need of
        these."""
        if len(outputs) != len(self.specs):
            return False
        for x, (shape, dtype, needs_grad) in zip(outputs, self._expected):  # noqa: B905
            if x.shape != shape or x.dtype is not dtype:
                return False
            if x.requires_grad is not needs_grad and torch.is_grad_enabled():
                return False
        return True

    def unlike(self, stage: int, found: StageInterface) -> ShapeError:
        """The error of a ``stage`` that was tried with this interface and has another one now."""
        what = f"stage {stage}: its output is {found}, was {self} when it was tried"
        if found.specs != self.specs:
            return ShapeError(f"{what} on inputs of these shapes")
        return ShapeError(
            f"{what}: requires_grad of its parameters, or of stages' before it, is not what it was "
            "then; expected gradients to be sent as they were planned: make the Pipeline again"
        )

    @cached_property
    def _expected(self) -> list[tuple[tuple[int, ...], torch.dtype, bool]]:
        pairs = zip(self.specs, self.needs_grad, strict=True)
        return [(spec.shape, spec.dtype, needs_grad) for spec, needs_grad in pairs]

    @cached_property
    def nbytes(self) -> tuple[int, ...]:
        """Bytes of each output."""
        return tuple(spec.nbytes for spec in self.specs)

    @cached_property
    def forward(self) -> PackedMessage:
        """The message of the outputs."""
        return PackedMessage(self.specs)

    @cached_property
    def backward(self) -> PackedMessage:
        """The message of the gradients that come back."""
        pairs = zip(self.specs, self.needs_grad, strict=True)
        return PackedMessage([spec for spec, needs_grad in pairs if needs_grad])

    def __str__(self) -> str:
        texts = [
            f"{spec}{'' if needs_grad or not spec.dtype.is_floating_point else ' without gradient'}"
            for spec, needs_grad in zip(self.specs, self.needs_grad, strict=True)
        ]
        return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


class PackedMessage:
    """Tensors as one message: one as it is, several in bytes; of none, a byte."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self._specs = tuple(specs)
        self._single = self._specs[0] if len(self._specs) == 1 else None
        self._offsets: list[int] = []
        end = 0
        for spec in self._specs:
            self._offsets.append(end)
            end += -(-spec.nbytes // ALIGNED) * ALIGNED
        self.nbytes = max(1, end if self._single is None else self._single.nbytes)

    def place(self, buffer: Tensor) -> Tensor:
        """The part of a buffer of bytes that the message fills."""
        if self._single is None:
            return buffer[: self.nbytes]
        return _view(buffer, 0, self._single)

    def tensors(self, place: Tensor) -> tuple[Tensor, ...]:
        """The tensors that lie in a place."""
        if self._single is not None:
            return (place,)
        return tuple(map(_view, [place] * len(self._specs), self._offsets, self._specs))

    def pack(self, tensors: Sequence[Tensor], device: torch.device) -> Tensor:
        """The tensor to send."""
        if self._single is not None:
            return tensors[0].contiguous()
        packed = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        for part, tensor in zip(self.tensors(packed), tensors, strict=True):
            part.copy_(tensor.detach())
        return packed


def _view(buffer: Tensor, offset: int, spec: Spec) -> Tensor:
    return buffer[offset : offset + spec.nbytes].view(spec.dtype).view(spec.shape)
