"""The state that forwards change, kept and restored: random numbers and the modules' buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .rng_state import RandomState


class ForwardState:
    """The states, now, of the generators on ``devices`` and of the modules' buffers, such as
    running statistics. ``random``: whether the generators are among it."""

    def __init__(
        self, modules: Iterable[nn.Module], devices: Iterable[torch.device], *, random: bool = True
    ) -> None:
        self._random = RandomState(devices) if random else None
        self._buffers: list[tuple[Tensor, Tensor]] = [
            (buffer, buffer.detach().clone()) for m in modules for buffer in m.buffers()
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Puts all of it back, so that forwards run again as if for the first time."""
        if self._random is not None:
            self._random.restore()
        for buffer, value in self._buffers:
            buffer.copy_(value)


@contextmanager
def undisturbed(
    modules: Iterable[nn.Module], devices: Iterable[torch.device], *, random: bool = True
) -> Iterator[None]:
    """A context after which random numbers and buffers are as before it."""
    state = ForwardState(modules, devices, random=random)
    try:
        yield
    finally:
        state.restore()
