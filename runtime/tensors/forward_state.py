"""The state that forwards change, kept and restored: random numbers and the modules' buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from pipeloom.ir.errors import InputError

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
        """Whether something has written to the buffer by now, which running statistics do not
        tell: whether they have another value."""
        if self.module._buffers[self.name] is not self.buffer:
            return True
        if self.buffer._version != self.version:
            return True
        if not is_fake(self.buffer):
            return not torch.equal(self.buffer, self.value)
        return isinstance(self.module, _NormBase) and self.module.training


class ChangingBuffers:
    """The buffers of a stage's ``module`` that its forwards change, such as running statistics:
    found at the first forward in each choice of training and evaluation mode of its parts."""

    def __init__(self, stage: int, module: nn.Module) -> None:
        self._stage = stage
        self._owners = [part for part in module.modules() if part._buffers]
        self._changing: dict[tuple[bool, ...], list[tuple[nn.Module, str]]] = {}

    @contextmanager
    def kept(self) -> Iterator[list[KeptBuffer]]:
        """A context for a forward; afterwards the list has, of what it changed, what was before.

        Raises InputError for one that changes what the first one in this mode did not."""
        mode = tuple([part.training for part in self._owners])
        known = self._changing.get(mode)
        every = [(part, name) for part in self._owners for name in part._buffers]
        kept = _copies(every if known is None else known)
        before = [] if known is None else list(map(_written, every))
        yield kept
        if known is None:
            kept[:] = [one for one in kept if one.changed]
            self._changing[mode] = [(one.module, one.name) for one in kept]
            return
        for place, was in zip(every, before, strict=True):
            if _written(place) != was and place not in known:
                raise InputError(
                    f"stage {self._stage}: expected a forward that changes the same buffers each "
                    f"time where it is recomputed: this one changes {place[1]}, which the first "
                    "one did not, and would change it twice"
                )


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


def _written(place: tuple[nn.Module, str]) -> tuple[int, int]:
    """A number that is another where something wrote to the buffer, or put one in its place."""
    buffer = place[0]._buffers[place[1]]
    return id(buffer), 0 if buffer is None or buffer.is_inference() else buffer._version


def _copies(places: Iterable[tuple[nn.Module, str]]) -> list[KeptBuffer]:
    """One copy of each buffer, also where several names have it."""
    found = [(part, name, part._buffers[name]) for part, name in places]
    copies = {id(buffer): buffer.detach().clone() for *_, buffer in found if buffer is not None}
    return [
        KeptBuffer(part, name, buffer, copies[id(buffer)], buffer._version)
        for part, name, buffer in found
        if buffer is not None
    ]
