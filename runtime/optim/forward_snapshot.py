"""Snapshots of what forwards change, so that they can be run again as if for the first time."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class ForwardSnapshot:
    """The states of random numbers and of the modules' buffers, such as running statistics."""

    def __init__(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        self._device = device
        self._random = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self._buffers: list[tuple[Tensor, Tensor]] = [
            (buffer, buffer.detach().clone()) for m in modules for buffer in m.buffers()
        ]

    @torch.no_grad()
    def back(self) -> None:
        """Restores all that was saved."""
        torch.set_rng_state(self._random)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)
        for buffer, value in self._buffers:
            buffer.copy_(value)
