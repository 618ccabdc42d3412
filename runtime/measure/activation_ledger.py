"""Counts the bytes of live activations, which one rank keeps for its backward passes.

Each storage counts once, however many tensors share it; of a DTensor, only the local part counts.
These are counted: tensors that autograd saves (except parameters and buffers of the stages), inputs
of deferred weight gradients until W, and received messages from the posting of their receive until
they are freed. Outputs of up to 64 KiB, which a stage keeps until B, are not counted.
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
from ..uncompiled import uncompiled
from .memory import Held, Memory, Turns


class Versioned(NamedTuple):
    """A tensor that autograd saved and that is not counted, with its version counter then."""

    tensor: Tensor
    version: int


class Ledger(Memory):
    """Counts the bytes of activations: ``live`` now, ``peak`` since :meth:`start`.

    Counting takes about 2 microseconds per tensor that autograd saves. If such a tensor is modified
    in place before the backward needs it, the backward raises ChangedInPlaceError (torch without
    the ledger's hooks raises RuntimeError). Activation checkpointing has hooks of its own: only the
    inputs of a checkpointed block are counted, not what exists during its recomputation.
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
        """Counts the storages of ``tensors``, each until it is released as often as it was held.

        Returns the value to pass to :meth:`release`.
        """
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
    def _pack(self, tensor: Tensor) -> Versioned | CountedTensor:
        if type(tensor) not in PLAIN:
            return self._pack_parts(tensor)
        storage = tensor.untyped_storage()
        pointer, size = storage.data_ptr(), storage.nbytes()
        if storage._cdata in self._excluded or size == 0:
            return Versioned(tensor, tensor._version)
        self._add(pointer, size)
        return CountedTensor(self, apart(tensor), ((pointer, size),))

    def _pack_parts(self, tensor: Tensor) -> Versioned | CountedTensor:
        """Counts the plain tensors inside ``tensor``, which is of a subclass such as DTensor."""
        inside = parts(tensor)
        counted = [x for x in inside if x.untyped_storage()._cdata not in self._excluded]
        held = self.hold(*(x for x in counted if x.untyped_storage().nbytes()))
        return (
            CountedTensor(self, apart(tensor), held) if held else Versioned(tensor, tensor._version)
        )


def saved_by(*kinds: type) -> bool:
    """Whether tensors that autograd saves now stay in memory until the backward.

    They do if there are no hooks for saved tensors, or if these are methods of objects of the
    classes ``kinds``. Other hooks are assumed to be those of activation checkpointing, which
    recomputes the tensors.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is None or isinstance(getattr(hooks[0], "__self__", None), kinds)


class CountedTensor:
    """A tensor that autograd saved, which a ledger counts until the graph drops it."""

    __slots__ = ("held", "ledger", "tensor", "version")

    def __init__(self, ledger: Memory, tensor: Tensor, held: Held) -> None:
        self.ledger, self.tensor, self.held = ledger, tensor, held
        self.version = tensor._version

    def __del__(self) -> None:
        ledger = getattr(self, "ledger", None)  # torch.compile creates instances without __init__
        if ledger is not None:
            ledger.release(self.held)


def _storages(module: nn.Module) -> frozenset[int]:
    """Returns the ids of the storages of the module's parameters and buffers.

    They identify the storage objects, not their memory, which changes if weights are streamed.
    """
    found = set[int]()
    for tensor in chain(module.parameters(), module.buffers()):
        for part in (tensor,) if type(tensor) in PLAIN else parts(tensor):
            found.add(part.untyped_storage()._cdata)
    return frozenset(found)


def _place(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def apart(tensor: Tensor) -> Tensor:
    """Returns ``tensor``, detached from its graph unless it is a leaf.

    An output that its own op saves would form a reference cycle if it were not detached.
    """
    return tensor if tensor.is_leaf else tensor.detach()


@uncompiled
def _unpack(saved: Versioned | CountedTensor) -> Tensor:
    return unchanged(saved.tensor, saved.version)


def unchanged(tensor: Tensor, version: int) -> Tensor:
    """Returns ``tensor``.

    Raises ChangedInPlaceError if its version counter is not ``version``.
    """
    if tensor._version != version:
        raise ChangedInPlaceError(tensor)
    return tensor
