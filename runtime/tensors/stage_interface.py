"""The tensors between a stage and the next, and which of them have gradients.

One message carries all tensors of a microbatch. A single tensor is sent as it is; several are
packed::

    stage 0 ──▶ (hidden float32[2, 8], mask bool[2, 8], skip float32[2, 4]) ──▶ stage 1
                 x1.0:   hidden │ mask │ skip          one message of bytes
                 dy0.0:  hidden'       │ skip'         no gradient of a mask
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..errors import ShapeError
from .packed_message import PackedMessage, Spec


@dataclass(frozen=True)
class StageInterface:
    """A stage's outputs for one microbatch; ``needs_grad[i]``: whether output i has a gradient."""

    specs: tuple[Spec, ...]
    needs_grad: tuple[bool, ...]

    @classmethod
    def of(cls, outputs: Sequence[Tensor]) -> StageInterface:
        """Returns the interface of a stage with these outputs."""
        return cls(tuple(map(Spec.of, outputs)), tuple(x.requires_grad for x in outputs))

    def fits(self, outputs: Sequence[Tensor]) -> bool:
        """Whether ``outputs`` have this interface.

        Their ``requires_grad`` is compared only if gradients are enabled.
        """
        if len(outputs) != len(self.specs):
            return False
        for x, (shape, dtype, needs_grad) in zip(outputs, self._expected):  # noqa: B905
            if x.shape != shape or x.dtype is not dtype:
                return False
            if x.requires_grad is not needs_grad and torch.is_grad_enabled():
                return False
        return True

    def unlike(self, stage: int, found: StageInterface) -> ShapeError:
        """Returns the error to raise if ``stage`` has the interface ``found`` instead of this one.

        This object is the interface that shape inference has determined.
        """
        what = f"stage {stage}: its output is {found}, was {self} when it was tried"
        if found.specs != self.specs:
            return ShapeError(
                f"{what}: shapes can only change from step to step with varying_shapes=True"
            )
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
        """The number of bytes of each output."""
        return tuple(spec.nbytes for spec in self.specs)

    @cached_property
    def forward(self) -> PackedMessage:
        """The layout of the message with the outputs."""
        return PackedMessage(self.specs)

    @cached_property
    def backward(self) -> PackedMessage:
        """The layout of the message with the gradients of the outputs that have one."""
        pairs = zip(self.specs, self.needs_grad, strict=True)
        return PackedMessage([spec for spec, needs_grad in pairs if needs_grad])

    def __str__(self) -> str:
        texts = [
            f"{spec}{'' if needs_grad or not spec.dtype.is_floating_point else ' without gradient'}"
            for spec, needs_grad in zip(self.specs, self.needs_grad, strict=True)
        ]
        return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
