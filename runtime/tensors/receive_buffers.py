"""The buffers that a rank receives into, reused by consecutive programs."""

from __future__ import annotations

import torch
from torch import Tensor

from .packed_message import Spec


class ReceiveBuffers:
    """Buffers by their positions in a program, each as large as the largest request so far.

    A program may only take them while no other program uses them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._bytes: list[Tensor] = []

    def take(self, place: int, spec: Spec) -> Tensor:
        """Returns the buffer number ``place`` of the program, an existing one or the next."""
        if place == len(self._bytes):
            self._bytes.append(torch.empty(0, dtype=torch.uint8, device=self._device))
        if len(self._bytes[place]) < spec.nbytes:
            self._bytes[place] = torch.empty(spec.nbytes, dtype=torch.uint8, device=self._device)
        return self._bytes[place][: spec.nbytes].view(spec.dtype).view(spec.shape)
