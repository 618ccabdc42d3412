"""The interface for counting activation bytes, switched off; :mod:`.activation_ledger` counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from torch import Tensor, nn

Held: TypeAlias = tuple[tuple[int, int], ...]
Turns: TypeAlias = tuple[Callable[[], None], Callable[[], None]]


class Memory:
    """Counts the bytes of activations that the executor holds.

    :class:`~.activation_ledger.Ledger` counts; this class is switched off and costs nothing.
    """

    live = 0
    peak = 0

    def start(self, modules: Iterable[nn.Module]) -> None:
        """Starts a new peak; parameters and buffers of ``modules`` are not activations."""

    def exclude(self, module: nn.Module) -> None:
        """Excludes the new storages of the module's parameters: they are not activations either."""

    def hold(self, *tensors: Tensor) -> Held:
        """Counts the storages of ``tensors`` until the result is released."""
        return ()

    def release(self, held: Held) -> None:
        """Ends a hold."""

    def turns(self, buffer: Tensor) -> Turns | None:
        """Returns the calls that hold and release a reused buffer; None if it is not counted."""
        return None

    def watching(self) -> AbstractContextManager[object]:
        """A context in which tensors that autograd saves are counted until the graph drops them."""
        return nullcontext()
