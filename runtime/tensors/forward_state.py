"""Saves and restores the state that forwards change: random numbers and modules' buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .rng_state import RandomState, generators_of


class ForwardState:
    """A copy of the current state of random generators and buffers.

    It includes the default generators of the CPU and of ``devices``, and the generators and buffers
    (such as running statistics) of ``modules``.
    """

    def __init__(self, modules: Iterable[nn.Module], devices: Iterable[torch.device]) -> None:
        modules = list(modules)
        own = (generator for module in modules for generator in generators_of(module))
        self._random = RandomState(devices, own)
        owners = [part for module in modules for part in module.modules()]
        self._buffers = _copies((part, name) for part in owners for name in part._buffers)

    @torch.no_grad()
    def restore(self) -> None:
        """Restores the copied state, so that forwards give the same results as after the copy."""
        self._random.restore()
        for one in self._buffers:
            one.module._buffers[one.name] = one.buffer
            one.buffer.copy_(one.value)


@contextmanager
def undisturbed(modules: Iterable[nn.Module], devices: Iterable[torch.device]) -> Iterator[None]:
    """A context that on exit restores random states and the modules' buffers (ForwardState)."""
    state = ForwardState(modules, devices)
    try:
        yield
    finally:
        state.restore()


@dataclass(frozen=True, slots=True, eq=False)
class KeptBuffer:
    """The ``buffer`` of ``module`` called ``name``, as it was before a forward.

    ``value``: a copy of it. ``version``: torch's version counter of the buffer at that time.
    """

    module: nn.Module
    name: str
    buffer: Tensor
    value: Tensor
    version: int

    @property
    def changed(self) -> bool:
        """Whether the buffer has been modified or replaced since it was copied.

        Values are compared, too, as writes by ``batch_norm`` and to ``.data`` do not increment the
        version counter.
        """
        if self.module._buffers[self.name] is not self.buffer:
            return True
        if self.buffer._version != self.version:
            return True
        return not torch.equal(self.buffer, self.value)


@contextmanager
def kept_buffers(places: Iterable[tuple[nn.Module, str]]) -> Iterator[list[KeptBuffer]]:
    """A context for a forward that may modify buffers; yields a list of copies of them.

    ``places``: the buffers, as pairs of a module and a name in it. On exit, only those that were
    modified remain in the list, with their previous values.
    """
    kept = _copies(places)
    yield kept
    kept[:] = [one for one in kept if one.changed]


@contextmanager
def in_place_of_buffers(kept: Sequence[KeptBuffer]) -> Iterator[None]:
    """A context in which modules use and modify the copies in ``kept`` instead of their buffers."""
    own = [one.module._buffers[one.name] for one in kept]
    for one in kept:
        one.module._buffers[one.name] = one.value
    try:
        yield
    finally:
        for one, buffer in zip(kept, own, strict=True):
            one.module._buffers[one.name] = buffer


def _copies(places: Iterable[tuple[nn.Module, str]]) -> list[KeptBuffer]:
    """Returns copies of the buffers; a buffer with several names is copied once."""
    found = [(part, name, part._buffers[name]) for part, name in places]
    copies = {id(buffer): buffer.detach().clone() for *_, buffer in found if buffer is not None}
    return [
        KeptBuffer(part, name, buffer, copies[id(buffer)], buffer._version)
        for part, name, buffer in found
        if buffer is not None
    ]
