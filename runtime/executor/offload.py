"""Activations that are copied to the host after F and back before B.

:class:`OffloadedActivations` holds the tensors that autograd saved for one microbatch on one
stage. Each storage is copied once, however many tensors share it. Parameters are not offloaded,
nor are the stage's inputs, which stay in their receive buffer. On an accelerator, copies run on
separate streams, to and from pinned memory. On a CPU, the same copies are made (after F and at L),
and the ledger does not count the offloaded tensors as activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..device import Device
from ..dtensors import PLAIN, parts
from ..measure.activation_ledger import CountedTensor, Versioned, apart, unchanged
from ..measure.memory import Memory
from ..uncompiled import uncompiled

Copies: TypeAlias = Sequence[tuple[Tensor, Tensor]]  # pairs (target, source) of byte tensors
Wait: TypeAlias = Callable[[], object]  # call that makes the current stream wait for copies


def _nothing() -> None:
    """Does nothing; used as the function that waits if no copies have been started."""


class CopyChannels:
    """One copy stream per direction, synchronized with the compute stream by events.

    ``out`` starts copies to the host, ``back`` those to the device. Each returns a function that
    makes the current stream wait for the copies; the host does not wait.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._out, self._back = device.stream(), device.stream()

    def out(self, copies: Copies) -> Wait:
        return self._beside(self._out, copies)

    def back(self, copies: Copies) -> Wait:
        # earlier copies to the host may still be writing the memory that is read here
        self._back.wait_stream(self._out)
        return self._beside(self._back, copies)

    def _beside(self, channel: torch.Stream, copies: Copies) -> Wait:
        """Queues the copies on the stream ``channel`` and returns the function that waits for them.

        The copies start after all work that is already queued on the current stream, as that work
        may use their memory.
        """
        channel.wait_stream(self._device.current())
        with self._device.use(channel):
            for target, source in copies:
                target.copy_(source, non_blocking=True)
            done = self._device.event()
            done.record(channel)
        return lambda: self._device.current().wait_event(done)


class Host:
    """Host memory, and the copy channels to it."""

    def __init__(self, device: torch.device) -> None:
        self._device = Device(device)

    @cached_property
    def channels(self) -> CopyChannels:
        return CopyChannels(self._device)

    def take(self, size: int) -> Tensor:
        """Returns a new byte tensor of ``size`` bytes on the host, pinned for an accelerator.

        torch reuses pinned memory once the copies from and to it are done.
        """
        return torch.empty(size, dtype=torch.uint8, pin_memory=not self._device.is_host)


class OffloadedActivations:
    """The tensors that autograd saved in F of one microbatch, on the device or on the host.

    The order of the calls is :meth:`packing` around F, :meth:`leave` after it, :meth:`gone` in O,
    :meth:`load` in L and :meth:`back` before B.
    """

    def __init__(self, host: Host, memory: Memory) -> None:
        self._host, self._memory = host, memory
        self._saved: list[_SavedActivation] = []
        self._stay: frozenset[int] = frozenset()
        self._places: dict[int, tuple[Tensor, torch.device]] = {}
        self._wait: Wait = _nothing

    def packing(self, stay: Iterable[Tensor]) -> AbstractContextManager[object]:
        """Returns a context in which tensors that autograd saves are recorded to be offloaded.

        Tensors that share memory with one of ``stay`` are left on the device.
        """
        self._stay = frozenset(p.untyped_storage()._cdata for t in stay for p in parts(t))
        return saved_tensors_hooks(self.pack, unpack)

    def leave(self) -> None:
        """Starts to copy the saved tensors to the host, after F."""
        tensors, copies = {saved.key: saved.tensor for saved in self._saved}, []
        for key, tensor in tensors.items():
            storage, device = tensor.untyped_storage(), tensor.device
            place = self._host.take(storage.nbytes())
            self._places[key] = place, device
            copies.append((place, _bytes(storage, device)))
        self._wait = self._host.channels.out(copies)

    def gone(self) -> None:
        """Waits until the tensors are on the host, and frees their device memory.

        Raises ChangedInPlaceError if one was modified in place since autograd saved it.
        """
        self._wait()
        self._wait = _nothing
        for saved in self._saved:
            unchanged(saved.tensor, saved.version)
        for saved in self._saved:
            saved.give_up()

    @property
    def moved(self) -> int:
        """The number of bytes on the host, including those that are being copied there or back."""
        return sum(place.nbytes for place, _ in self._places.values())

    def load(self) -> None:
        """Allocates device memory for the saved tensors, and starts to copy them back into it."""
        there: dict[int, Tensor] = {}
        copies = []
        for key, (place, device) in self._places.items():
            there[key] = torch.empty(place.nbytes, dtype=torch.uint8, device=device)
            copies.append((there[key], place))
        for saved in self._saved:
            saved.fill(there[saved.key].untyped_storage())
        self._wait = self._host.channels.back(copies)

    def back(self) -> None:
        """Waits until the tensors are on the device again, and frees the host memory.

        Called before B.
        """
        self._wait()
        self.clear()

    def clear(self) -> None:
        """Drops the host memory and this object's references to the tensors.

        Autograd keeps its own references.
        """
        self._wait = _nothing
        self._places.clear()
        self._saved.clear()

    @uncompiled
    def pack(self, tensor: Tensor) -> Packed:
        """Returns the object that autograd saves in place of ``tensor``, see :func:`unpack`."""
        if type(tensor) not in PLAIN and is_traceable_wrapper_subclass(tensor):
            return _Wrapped(tensor, self.pack)
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0 or storage._cdata in self._stay:
            return Versioned(tensor, tensor._version)
        saved = _SavedActivation(self._memory, tensor)
        self._saved.append(saved)
        return saved


class _SavedActivation(CountedTensor):
    """A tensor that autograd saved. While it is on the host, only its layout is kept here.

    ``key``: the id of its storage. ``shape``: storage offset, size, strides and dtype.
    """

    __slots__ = ("device", "key", "shape")

    def __init__(self, memory: Memory, tensor: Tensor) -> None:
        super().__init__(memory, apart(tensor), memory.hold(tensor))
        self.key = tensor.untyped_storage()._cdata
        self.device = tensor.device
        self.shape = tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype

    def give_up(self) -> None:
        """Drops the tensor on the device."""
        self.ledger.release(self.held)
        self.held = ()
        del self.tensor

    def fill(self, storage: torch.UntypedStorage) -> None:
        """Recreates the tensor as a view of ``storage``, into which its values are copied later."""
        offset, size, stride, dtype = self.shape
        self.tensor = torch.empty(0, dtype=dtype, device=self.device)
        self.tensor.set_(storage, offset, size, stride)
        self.version, self.held = self.tensor._version, self.ledger.hold(self.tensor)


class _Wrapped:
    """A saved tensor of a subclass, such as a DTensor, whose inner tensors ``pack`` has replaced.

    ``unpack`` recreates the tensor of the subclass.
    """

    __slots__ = ("context", "kind", "parts", "shape")

    def __init__(self, tensor: Any, pack: Callable[[Tensor], Packed]) -> None:
        names, self.context = tensor.__tensor_flatten__()
        self.kind, self.shape = type(tensor), (tensor.size(), tensor.stride())
        inside = {name: getattr(tensor, name) for name in names}
        self.parts = {n: pack(x) if isinstance(x, Tensor) else x for n, x in inside.items()}

    def unpack(self) -> Tensor:
        inside = {
            name: unpack(part) if isinstance(part, Packed) else part
            for name, part in self.parts.items()
        }
        whole: Tensor = self.kind.__tensor_unflatten__(inside, self.context, *self.shape)
        return whole


Packed: TypeAlias = Versioned | CountedTensor | _Wrapped


@uncompiled
def unpack(saved: Packed) -> Tensor:
    """Returns the tensor that ``saved`` stands for, which must be on the device.

    Raises ChangedInPlaceError if it was modified in place since it was saved or loaded.
    """
    if isinstance(saved, _Wrapped):
        return saved.unpack()
    return unchanged(saved.tensor, saved.version)


def _bytes(storage: torch.UntypedStorage, device: torch.device) -> Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device=device)
    view: Tensor = empty.set_(storage, 0, (storage.nbytes(),), (1,))
    return view
