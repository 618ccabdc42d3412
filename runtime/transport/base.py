"""The interface of a transport, through which the executor communicates with other ranks.

Messages from one rank to another are received in the order in which they are sent. ``send`` and
``recv`` post a message and never block; ``wait`` of the returned handle blocks (on a GPU, it makes
the current stream wait, not the host).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from pipeloom.ir.errors import InputError, PipeloomError, in_words, of_rank

from ..errors import ExecutionError, ShapeError

if TYPE_CHECKING:
    from .replica_faults import ReplicaFaults

PINGS = 8
KINDS: dict[str, type[PipeloomError]] = {
    kind.__name__: kind for kind in (InputError, ShapeError, ExecutionError)
}


@dataclass(frozen=True, slots=True)
class Fault:
    """The error of the first rank that failed, which the others raise."""

    rank: int
    kind: str
    text: str
    replica: int | None = None  # None: this replica
    guess: bool = False  # may be caused by another, silent rank
    absent: Sequence[int] = field(default=(), compare=False)
    """Ranks missing where all were expected; one of them failed. A list if read from the store."""

    @classmethod
    def of(cls, rank: int, error: Exception) -> Fault:
        kind = next((kind for kind in type(error).__mro__ if kind.__name__ in KINDS), type(error))
        return cls(rank, kind.__name__, of_rank(rank, in_short(in_words(error))))

    def raised(self) -> PipeloomError:
        """Returns it as an exception with attributes ``rank`` and ``replica``.

        A launch reports that rank as failed.
        """
        where = "" if self.replica is None else f"replica {self.replica}, "
        error = KINDS.get(self.kind, ExecutionError)(f"{where}{self.text}")
        error.rank, error.replica = self.rank, self.replica  # type: ignore[attr-defined]
        return error


class Handle(Protocol):
    """A posted message."""

    @property
    def wait(self) -> Callable[[], object]:
        """Waits until the message is received, or sent. Raises on a timeout."""
        ...


class Transport(Protocol):
    """The connections of one rank to all others.

    ``rank`` and ``size``: this rank and the number of ranks. ``replicas``: where errors of the
    pipeline's replicas are published; None without replicas.
    """

    rank: int
    size: int
    replicas: ReplicaFaults | None

    def send(self, tensor: Tensor, peer: int) -> Handle:
        """Posts a contiguous tensor, which must not change until the handle's ``wait`` returns."""
        ...

    def recv(self, buffer: Tensor, peer: int) -> Handle:
        """Posts a receive; ``buffer`` may be written until the handle's ``wait`` returns."""
        ...

    def releasing(self, buffer: Tensor) -> Callable[[], None] | None:
        """Returns the function to call before ``buffer`` is received into again, or None.

        It is called when all reads of the buffer have been issued. This method is called before the
        buffer's first use.
        """
        ...

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        """Sums ``tensor`` in place over ``ranks``, one of the groups given at construction."""
        ...

    def share(self, value: Any, source: int) -> Any:
        """Returns the ``value`` that rank ``source`` passed; all ranks call it."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Returns the values that the ranks passed, in rank order; all ranks call it."""
        ...

    def barrier(self) -> None: ...

    def fail(self, fault: Fault, *, asks: bool) -> Fault:
        """Publishes a fault of this rank and ends all waits between it and other ranks.

        Of several ranks' faults, the first is kept. With ``asks``, returns that one, since the
        fault of this rank may be a consequence of it; otherwise ``fault``.
        """
        ...

    def beside(self, routes: Routes) -> Transport:
        """Returns a new transport between the same ranks; all ranks call it.

        Messages of the two are independent, but if a rank fails, the waits of both end.
        """
        ...

    def close(self) -> None:
        """Closes the connections; all ranks call it, and nothing else afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class Routes:
    """The connections that a program uses.

    ``channels``: ordered pairs of ranks. ``groups``: groups of ranks that sum.
    """

    channels: frozenset[tuple[int, int]] = frozenset()
    groups: frozenset[tuple[int, ...]] = frozenset()
    timeout: timedelta = timedelta(seconds=300)

    @classmethod
    def of(
        cls, channels: Iterable[tuple[int, int]], groups: Iterable[tuple[int, ...]], seconds: float
    ) -> Routes:
        return cls(frozenset(channels), frozenset(groups), timedelta(seconds=seconds))


def clock_offset(transport: Transport) -> float:
    """Returns the seconds to add to this rank's ``time.perf_counter`` to get rank 0's.

    It is the median of the differences after barriers; all ranks call it.
    """
    offsets: list[float] = []
    for _ in range(PINGS):
        transport.barrier()
        here = time.perf_counter()
        offsets.append(transport.share(here, 0) - here)
    return median(offsets)


def timed_out(what: str, seconds: float) -> TimeoutError:
    """Returns the error of a wait for ``what`` that timed out, in torch's words."""
    return TimeoutError(f"Timed out waiting {seconds * 1e3:.0f}ms for {what}")


def in_short(text: str) -> str:
    """Removes source locations and guesses about causes from torch's error message."""
    return re.sub(r"\[/\S+:\d+\] |\. This (is typically|may indicate)[\s\S]*", "", text)
