"""Packs tensors of known shapes and dtypes into one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

ALIGNED = 64  # bytes; each packed tensor starts at a multiple of this in the message


@dataclass(frozen=True, slots=True, repr=False)
class Spec:
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Spec:
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def nbytes(self) -> int:
        """The number of bytes of a tensor with this shape and dtype."""
        return prod(self.shape) * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


class PackedMessage:
    """The layout of tensors with these ``specs`` in one message of ``nbytes`` bytes.

    A single tensor is sent as it is. Several tensors are copied into one tensor of bytes. A message
    without tensors is one byte.
    """

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
        """Returns the part of a byte buffer that the message fills, as a tensor.

        If the message is a single tensor, the result has its shape and dtype; otherwise, it
        consists of bytes.
        """
        if self._single is None:
            return buffer[: self.nbytes]
        return _view(buffer, 0, self._single)

    def tensors(self, place: Tensor) -> tuple[Tensor, ...]:
        """Returns the message's tensors as views of ``place``, a result of :meth:`place`."""
        if self._single is not None:
            return (place,)
        return tuple(map(_view, [place] * len(self._specs), self._offsets, self._specs))

    def empty(self, device: torch.device) -> Tensor:
        """Returns a new tensor for the message, on ``device``, whose values are not initialized."""
        return self.place(torch.empty(self.nbytes, dtype=torch.uint8, device=device))

    def pack(self, tensors: Sequence[Tensor], device: torch.device) -> Tensor:
        """Returns ``tensors`` as one contiguous tensor to send.

        Several tensors are copied into a new tensor on ``device``; a single contiguous one is not.
        """
        if self._single is not None:
            return tensors[0].contiguous()
        packed = self.empty(device)
        for part, tensor in zip(self.tensors(packed), tensors, strict=True):
            part.copy_(tensor.detach())
        return packed


def _view(buffer: Tensor, offset: int, spec: Spec) -> Tensor:
    return buffer[offset : offset + spec.nbytes].view(spec.dtype).view(spec.shape)
