"""The ledger of live activation bytes: what one rank holds for its backward passes.

It counts each storage once, however many tensors share it (of a DTensor this process's part): what
autograd saves (parameters and buffers of the stages excluded), the inputs of weight gradients that
wait for their W, and received messages from the moment their receive is posted until they are
freed. Not counted: outputs of up to 64 KiB, which a stage keeps until their B.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ..dtensors import PLAIN, parts
from ..errors import ChangedInPlaceError
from ..fake_tensors import is_fake
from ..uncompiled import uncompiled
from .memory import Held, Memory, Turns


class Versioned(NamedTuple):
    """A tensor, and how often it had been changed in place when it was saved."""

    tensor: Tensor
    version: int


class Ledger(Memory):
    """Counts bytes: ``live`` now, ``peak`` since :meth:`start`.

    Costs about 2 microseconds for each tensor that autograd saves; one that was changed in place by
    the time it is needed raises ChangedInPlaceError, as torch does without hooks. Activation
    checkpointing saves through its own hooks: of a checkpointed block the inputs are counted, and
    nothing of what exists only while it is recomputed.
    """

    def __init__(self) -> None:
        self.live = 0
        self.peak = 0
        self._counts: dict[int, int] = {}
        self._excluded: frozenset[int] = frozenset()

    def start(self, modules: Iterable[nn.Module]) -> None:
        self._excluded = frozenset[int]().union(*map(_storages, modules))
        self.peak = self.live

    def exclude(self, module: nn.Module) -> None:
        self._excluded |= _storages(module)

    def hold(self, *tensors: Tensor) -> Held:
        """A storage counts until as many releases as holds have come."""
        held = tuple([_place(y) for x in tensors for y in ((x,) if type(x) in PLAIN else parts(x))])
        for pointer, size in held:
            self._add(pointer, size)
        return held

    def release(self, held: Held) -> None:
        for pointer, size in held:
            self._remove(pointer, size)

    def turns(self, buffer: Tensor) -> Turns:
        place = _place(buffer)
        return partial(self._add, *place), partial(self._remove, *place)

    def watching(self) -> AbstractContextManager[object]:
        return saved_tensors_hooks(self._pack, _unpack)

    def _add(self, pointer: int, size: int) -> None:
        count = self._counts.get(pointer, 0)
        self._counts[pointer] = count + 1
        if count == 0:
            self.live += size
            self.peak = max(self.peak, self.live)

    def _remove(self, pointer: int, size: int) -> None:
        count = self._counts[pointer]
        if count > 1:
            self._counts[pointer] = count - 1
            return
        del self._counts[pointer]
        self.live -= size

    @uncompiled
    def _pack(self, tensor: Tensor) -> Versioned | _CountedTensor:
        if type(tensor) not in PLAIN:
            return self._pack_parts(tensor)
        storage = tensor.untyped_storage()
        pointer, size = storage.data_ptr(), storage.nbytes()
        if storage._cdata in self._excluded or size == 0:
            return Versioned(tensor, tensor._version)
        self._add(pointer, size)
        return _CountedTensor(self, apart(tensor), ((pointer, size),))

    def _pack_parts(self, tensor: Tensor) -> Versioned | _CountedTensor:
        """Counts the plain tensors inside of a subclass, such as a DTensor."""
        inside = parts(tensor)
        counted = [x for x in inside if x.untyped_storage()._cdata not in self._excluded]
        held = self.hold(*(x for x in counted if x.untyped_storage().nbytes()))
        return (
            _CountedTensor(self, apart(tensor), held)
            if held
            else Versioned(tensor, tensor._version)
        )


def saved_by(*kinds: type) -> bool:
    """Whether what autograd saves now is kept by it or by one of these kinds, not made once
    more."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is None or isinstance(getattr(hooks[0], "__self__", None), kinds)


class _CountedTensor:
    """A tensor that autograd saved; the graph drops it when it needs it no more."""

    __slots__ = ("held", "ledger", "tensor", "version")

    def __init__(self, ledger: Ledger, tensor: Tensor, held: Held) -> None:
        self.ledger, self.tensor, self.held = ledger, tensor, held
        self.version = tensor._version

    def __del__(self) -> None:
        ledger = getattr(self, "ledger", None)  # torch.compile makes one without its __init__
        if ledger is not None:
            ledger.release(self.held)


def _storages(module: nn.Module) -> frozenset[int]:
    """The module's storages by object, as the memory of streamed weights comes and goes."""
    found = set[int]()
    for tensor in chain(module.parameters(), module.buffers()):
        for part in (tensor,) if type(tensor) in PLAIN else parts(tensor):
            found.add(part.untyped_storage()._cdata)
    return frozenset(found)


def _place(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    # a fake one is nowhere
    nowhere = type(tensor) is not Tensor and is_fake(tensor)
    pointer = storage._cdata if nowhere else storage.data_ptr()
    return pointer, storage.nbytes()


def apart(tensor: Tensor) -> Tensor:
    """A saved tensor without its graph: an output that its op saves would hold itself for ever."""
    return tensor if tensor.is_leaf else tensor.detach()


@uncompiled
def _unpack(saved: Versioned | _CountedTensor) -> Tensor:
    return unchanged(saved.tensor, saved.version)


def unchanged(tensor: Tensor, version: int) -> Tensor:
    """The tensor, if it is still at this version. Raises ChangedInPlaceError."""
    if tensor._version != version:
        raise ChangedInPlaceError(tensor)
    return tensor
