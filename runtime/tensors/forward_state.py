"""The state that forwards change, kept and restored: random numbers and the modules' buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..fake_tensors import is_fake
from .rng_state import RandomState, generators_of


class ForwardState:
    """The states, now, of the generators on ``devices``, and of the modules' own generators and
    buffers, such as running statistics."""

    def __init__(self, modules: Iterable[nn.Module], devices: Iterable[torch.device]) -> None:
        modules = list(modules)
        own = (generator for module in modules for generator in generators_of(module))
        self._random = RandomState(devices, own)
        owners = [part for module in modules for part in module.modules()]
        self._buffers = _copies((part, name) for part in owners for name in part._buffers)

    @torch.no_grad()
    def restore(self) -> None:
        """Puts all of it back, so that forwards run again as if for the first time."""
        self._random.restore()
        for one in self._buffers:
            one.module._buffers[one.name] = one.buffer
            one.buffer.copy_(one.value)


@contextmanager
def undisturbed(modules: Iterable[nn.Module], devices: Iterable[torch.device]) -> Iterator[None]:
    """A context after which random numbers and buffers are as before it."""
    state = ForwardState(modules, devices)
    try:
        yield
    finally:
        state.restore()


@dataclass(frozen=True, slots=True, eq=False)
class KeptBuffer:
    """A buffer of ``module``, and a copy of its ``value`` and its ``version`` before a forward."""

    module: nn.Module
    name: str
    buffer: Tensor
    value: Tensor
    version: int

    @property
    def changed(self) -> bool:
        """Whether the buffer was modified or replaced since then.

        Torch does not count the writes of ``batch_norm`` and to ``.data``, so that values are
        compared; fake tensors have none.
        """
        if self.module._buffers[self.name] is not self.buffer:
            return True
        if self.buffer._version != self.version:
            return True
        if is_fake(self.buffer):
            return self.module.training and self.name.startswith("running_")
        return not torch.equal(self.buffer, self.value)


@contextmanager
def kept_buffers(places: Iterable[tuple[nn.Module, str]]) -> Iterator[list[KeptBuffer]]:
    """A context for a forward; afterwards the list has what was before of those of the buffers, by
    module and name, that it changed, such as running statistics."""
    kept = _copies(places)
    yield kept
    kept[:] = [one for one in kept if one.changed]


@contextmanager
def in_place_of_buffers(kept: Sequence[KeptBuffer]) -> Iterator[None]:
    """A context whose forward computes with the copies, and changes them, not the buffers."""
    own = [one.module._buffers[one.name] for one in kept]
    for one in kept:
        one.module._buffers[one.name] = one.value
    try:
        yield
    finally:
        for one, buffer in zip(kept, own, strict=True):
            one.module._buffers[one.name] = buffer


def _copies(places: Iterable[tuple[nn.Module, str]]) -> list[KeptBuffer]:
    """One copy of each buffer, also where several names have it."""
    found = [(part, name, part._buffers[name]) for part, name in places]
    copies = {id(buffer): buffer.detach().clone() for *_, buffer in found if buffer is not None}
    return [
        KeptBuffer(part, name, buffer, copies[id(buffer)], buffer._version)
        for part, name, buffer in found
        if buffer is not None
    ]
