"""Gradient clipping by the norm of all ranks' gradients together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .transport import Transport


class Clipping:
    """Scales this rank's gradients so that the norm of the whole model's is at most ``most``.

    As ``torch.nn.utils.clip_grad_norm_`` does it in one process: the norm is that of all gradients as
    one vector, and all are scaled by ``most / (norm + 1e-6)`` where that is below 1. ``trained``: the
    parameters that this rank steps; ``counted``: those whose gradients it adds to the norm, so that
    each parameter of the model is counted on one rank. ``ranks`` sum, in one message.
    """

    def __init__(
        self,
        most: float,
        trained: Sequence[nn.Parameter],
        counted: Sequence[nn.Parameter],
        *,
        ranks: tuple[int, ...],
        transport: Transport,
        device: torch.device,
    ) -> None:
        self._most = most
        self._trained, self._counted = trained, counted
        self._ranks, self._transport, self._device = ranks, transport, device
        self.norm: Tensor | None = None

    @torch.no_grad()
    def __call__(self) -> None:
        """Once all gradients are there, before any optimizer of the rank steps."""
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for gradient in _gradients(self._counted):
            total += torch.linalg.vector_norm(gradient).double().square()
        if len(self._ranks) > 1:
            self._transport.all_reduce(total, self._ranks)
        self.norm = total.sqrt()
        factor = (self._most / (self.norm + 1e-6)).clamp(max=1.0)
        for gradient in _gradients(self._trained):
            gradient.mul_(factor.to(gradient.dtype))


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]
