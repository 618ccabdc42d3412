"""The interface for counting bytes of activations, and its implementation that does not count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from torch import Tensor, nn

Held: TypeAlias = tuple[tuple[int, int], ...]  # (address, bytes) of storages that are counted
Turns: TypeAlias = tuple[Callable[[], None], Callable[[], None]]  # start and stop counting a buffer


class Memory:
    """The interface for counting the bytes of activations: ``live`` now, and the ``peak``.

    This class does not count and costs nothing; its subclass
    :class:`~.activation_ledger.Ledger` counts.
    """

    live = 0
    peak = 0

    def start(self, modules: Iterable[nn.Module]) -> None:
        """Begins a step: sets the peak to the bytes that are counted now.

        After that, parameters and buffers of ``modules`` are not counted as activations.
        """

    def exclude(self, module: nn.Module) -> None:
        """Excludes the module's parameters and buffers again, as their storages have changed."""

    def hold(self, *tensors: Tensor) -> Held:
        """Counts the storages of ``tensors`` until :meth:`release` is called with the result."""
        return ()

    def release(self, held: Held) -> None:
        """Stops counting ``held``, the result of a call of :meth:`hold`."""

    def turns(self, buffer: Tensor) -> Turns | None:
        """Returns two functions, which start and stop counting ``buffer``.

        They are created once for a buffer that is used many times. Returns None if this object does
        not count.
        """
        return None

    def watching(self) -> AbstractContextManager[object]:
        """Returns a context in which the tensors that autograd saves are counted.

        Each counts until the graph drops it.
        """
        return nullcontext()
