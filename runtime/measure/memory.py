"""The count of activation bytes, switched off; :mod:`.activation_ledger` is the one that counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from torch import Tensor, nn

Held: TypeAlias = tuple[tuple[int, int], ...]
Turns: TypeAlias = tuple[Callable[[], None], Callable[[], None]]


class Memory:
    """A count of the bytes of activations that the executor keeps and lets go.

    :class:`~.activation_ledger.Ledger` counts; this one is switched off and costs nothing.
    """

    live = 0
    peak = 0

    def start(self, modules: Iterable[nn.Module]) -> None:
        """Begins a new peak; the parameters and buffers of ``modules`` are not activations."""

    def exclude(self, module: nn.Module) -> None:
        """The module's parameters have moved: they are no activations where they are, either."""

    def hold(self, *tensors: Tensor) -> Held:
        """Counts the storages of ``tensors`` until the release of what is returned."""
        return ()

    def release(self, held: Held) -> None:
        """Ends a hold."""

    def turns(self, buffer: Tensor) -> Turns | None:
        """Calls that hold and release a buffer used again and again; None: it is not counted."""
        return None

    def watching(self) -> AbstractContextManager[object]:
        """A context in which all that autograd saves is counted until its graph lets it go."""
        return nullcontext()
