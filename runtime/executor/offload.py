"""Activations that go out to the host after F and come back before B.

:class:`OffloadedActivations` are what autograd saved for one microbatch on one stage. Their
storages go out once each, however many tensors share them; parameters and the stage's input, which
is in a buffer of its own anyway, stay. On an accelerator copies run on streams of their own, to and
from pinned memory. On a CPU the host is the same memory: the copies are made all the same, after F
and at L, and what is out is not counted as activations.
"""

from __future__ import annotations

from collections import defaultdict
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
from ..measure.activation_ledger import Versioned, apart, unchanged
from ..measure.memory import Memory
from ..uncompiled import uncompiled

Copies: TypeAlias = Sequence[tuple[Tensor, Tensor]]  # target, source; bytes
Wait: TypeAlias = Callable[[], object]


def _nothing() -> None:
    """There is no copy to wait for."""


class CopyChannels:
    """A stream each way, ordered with the stream that computes by events.

    ``out`` and ``back`` begin copies; what they return ends them for all that runs on the device
    from then on.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._out, self._back = device.stream(), device.stream()

    def out(self, copies: Copies) -> Wait:
        return self._beside(self._out, copies)

    def back(self, copies: Copies) -> Wait:
        # the host's memory is read, which the way out may still be writing
        self._back.wait_stream(self._out)
        return self._beside(self._back, copies)

    def _beside(self, channel: torch.Stream, copies: Copies) -> Wait:
        """The sources are done, and the targets free, once what is queued now has run."""
        channel.wait_stream(self._device.current())
        with self._device.use(channel):
            for target, source in copies:
                target.copy_(source, non_blocking=True)
            done = self._device.event()
            done.record(channel)
        return lambda: self._device.current().wait_event(done)


class Host:
    """Memory of the host, used again from step to step, and the copy channels to it."""

    def __init__(self, device: torch.device) -> None:
        self._device = Device(device)
        self._idle: defaultdict[int, list[Tensor]] = defaultdict(list)

    @cached_property
    def channels(self) -> CopyChannels:
        return CopyChannels(self._device)

    def take(self, size: int) -> Tensor:
        if self._idle[size]:
            return self._idle[size].pop()
        return torch.empty(size, dtype=torch.uint8, pin_memory=not self._device.is_host)

    def give(self, place: Tensor) -> None:
        self._idle[place.nbytes].append(place)


class OffloadedActivations:
    """The tensors that autograd saved in one F, on the device or out."""

    def __init__(self, host: Host, memory: Memory) -> None:
        self._host, self._memory = host, memory
        self._saved: list[_SavedActivation] = []
        self._stay: frozenset[int] = frozenset()
        self._places: dict[int, tuple[Tensor, torch.device]] = {}
        self._wait: Wait = _nothing

    def packing(self, stay: Iterable[Tensor]) -> AbstractContextManager[object]:
        """A context in which what autograd saves is offloaded, but for the tensors to ``stay``."""
        self._stay = frozenset(p.untyped_storage()._cdata for t in stay for p in parts(t))
        return saved_tensors_hooks(self.pack, unpack)

    def leave(self) -> None:
        """Begins the way out, after F."""
        tensors, copies = {saved.key: saved.tensor for saved in self._saved}, []
        for key, tensor in tensors.items():
            storage, device = tensor.untyped_storage(), tensor.device
            place = self._host.take(storage.nbytes())
            self._places[key] = place, device
            copies.append((place, _bytes(storage, device)))
        self._wait = self._host.channels.out(copies)

    def gone(self) -> None:
        """Waits for that, and gives up the memory on the device. Raises ChangedInPlaceError."""
        self._wait()
        self._wait = _nothing
        for saved in self._saved:
            unchanged(saved.tensor, saved.version)
        for saved in self._saved:
            saved.give_up()

    @property
    def moved(self) -> int:
        """Bytes that are out, or on their way."""
        return sum(place.nbytes for place, _ in self._places.values())

    def load(self) -> None:
        """Begins the way back."""
        there: dict[int, Tensor] = {}
        copies = []
        for key, (place, device) in self._places.items():
            there[key] = torch.empty(place.nbytes, dtype=torch.uint8, device=device)
            copies.append((there[key], place))
        for saved in self._saved:
            saved.fill(there[saved.key].untyped_storage())
        self._wait = self._host.channels.back(copies)

    def back(self) -> None:
        """Waits for that, before B."""
        self._wait()
        self.clear()

    def clear(self) -> None:
        """Forgets what autograd alone is to hold from here on."""
        for place, _ in self._places.values():
            self._host.give(place)
        self._wait = _nothing
        self._places.clear()
        self._saved.clear()

    @uncompiled
    def pack(self, tensor: Tensor) -> Packed:
        """The handle of a tensor that goes out, within :meth:`packing`."""
        if type(tensor) not in PLAIN and is_traceable_wrapper_subclass(tensor):
            return _Wrapped(tensor, self.pack)
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0 or storage._cdata in self._stay:
            return Versioned(tensor, tensor._version)
        saved = _SavedActivation(self._memory, tensor)
        self._saved.append(saved)
        return saved


class _SavedActivation:
    """A tensor that autograd saved: on the device, or the shape of one that is out."""

    __slots__ = ("_held", "_memory", "device", "key", "shape", "tensor", "version")

    def __init__(self, memory: Memory, tensor: Tensor) -> None:
        self._memory = memory
        self.key = tensor.untyped_storage()._cdata
        self.device = tensor.device
        self.shape = tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype
        self.tensor: Any = apart(tensor)  # None while it is out
        self.version = tensor._version
        self._held = memory.hold(tensor)

    def give_up(self) -> None:
        # torch.compile makes one without its __init__
        if getattr(self, "tensor", None) is not None:
            self._memory.release(self._held)
            self.tensor = None

    def fill(self, storage: torch.UntypedStorage) -> None:
        offset, size, stride, dtype = self.shape
        empty = torch.empty(0, dtype=dtype, device=self.device)
        self.tensor = empty.set_(storage, offset, size, stride)
        self._held = self._memory.hold(self.tensor)

    def __del__(self) -> None:
        self.give_up()


class _Wrapped:
    """A saved tensor of a subclass, a DTensor say, whose parts are each packed by themselves."""

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


Packed: TypeAlias = Versioned | _SavedActivation | _Wrapped


@uncompiled
def unpack(saved: Packed) -> Tensor:
    """The tensor that was packed; it is here. Raises ChangedInPlaceError."""
    if isinstance(saved, Versioned):
        return unchanged(*saved)
    if isinstance(saved, _Wrapped):
        return saved.unpack()
    tensor: Tensor = saved.tensor
    return tensor


def _bytes(storage: torch.UntypedStorage, device: torch.device) -> Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device=device)
    view: Tensor = empty.set_(storage, 0, (storage.nbytes(),), (1,))
    return view
