"""The buffers that a rank receives into, kept from program to program."""

from __future__ import annotations

import torch
from torch import Tensor

from .packed_message import Spec


class ReceiveBuffers:
    """Buffers by their places in a program, each as large as the largest so far.

    A program takes them again once no other that has them is running.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._bytes: list[Tensor] = []

    def take(self, place: int, spec: Spec) -> Tensor:
        """The buffer of that place in the program, which is one of the known or the next one."""
        if place == len(self._bytes):
            self._bytes.append(torch.empty(0, dtype=torch.uint8, device=self._device))
        if len(self._bytes[place]) < spec.nbytes:
            self._bytes[place] = torch.empty(spec.nbytes, dtype=torch.uint8, device=self._device)
        return self._bytes[place][: spec.nbytes].view(spec.dtype).view(spec.shape)
