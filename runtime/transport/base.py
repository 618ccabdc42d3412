"""Protocols of a transport: the executor's calls to the machines between ranks.

Messages from one rank to another in one direction are received in the order in which they are
sent. ``send`` and ``recv`` post and never block; a handle's ``wait`` does (on a GPU it makes the
current stream wait, not the host).
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
    """The error of the first rank that failed, as the others raise it."""

    rank: int
    kind: str
    text: str
    replica: int | None = None  # where it is another's
    guess: bool = False  # it may have come of another rank's, which said nothing
    absent: Sequence[int] = field(default=(), compare=False)
    """Those that did not come where all were to, one of which it is of; as told, a list."""

    @classmethod
    def of(cls, rank: int, error: Exception) -> Fault:
        kind = next((kind for kind in type(error).__mro__ if kind.__name__ in KINDS), type(error))
        return cls(rank, kind.__name__, of_rank(rank, in_short(in_words(error))))

    def raised(self) -> PipeloomError:
        """With the rank as ``rank``, and ``replica``: a launch reports that one as failed."""
        where = "" if self.replica is None else f"replica {self.replica}, "
        error = KINDS.get(self.kind, ExecutionError)(f"{where}{self.text}")
        error.rank, error.replica = self.rank, self.replica  # type: ignore[attr-defined]
        return error


class Handle(Protocol):
    """A message under way."""

    @property
    def wait(self) -> Callable[[], object]:
        """Until a received message is there, or a sent one has left. Raises on a timeout."""
        ...


class Transport(Protocol):
    """The connections of one rank to all others; ``rank`` and ``size`` are its own; ``replicas``:
    where errors of the pipeline's replicas are told, if it has any."""

    rank: int
    size: int
    replicas: ReplicaFaults | None

    def send(self, tensor: Tensor, peer: int) -> Handle:
        """Posts a contiguous tensor, which must stay unchanged until the handle was waited for."""
        ...

    def recv(self, buffer: Tensor, peer: int) -> Handle:
        """Posts a receive; the buffer is written at any time until the handle was waited for."""
        ...

    def releasing(self, buffer: Tensor) -> Callable[[], None] | None:
        """To be called when all reads of a receive buffer have been issued, before it is received
        into again; None where that needs no call. Asked for before the buffer's first use."""
        ...

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        """Sums ``tensor`` in place over ``ranks``, one of the groups named at construction."""
        ...

    def share(self, value: Any, source: int) -> Any:
        """The ``value`` that rank ``source`` passed; every rank calls it."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """The values that the ranks passed, in their order; every rank calls it."""
        ...

    def barrier(self) -> None: ...

    def fail(self, fault: Fault, *, asks: bool) -> Fault:
        """Tells all ranks of a fault on this one and ends their waits for it, and its own for them.

        Of several ranks' the first is told. That is what is returned where this rank ``asks``, as
        its own may have come of it.
        """
        ...

    def beside(self, routes: Routes) -> Transport:
        """A transport of its own between the same ranks, whose messages do not meet this one's and
        whose waits end with this one's where a rank fails; every rank calls it."""
        ...

    def close(self) -> None:
        """Gives the connections back; every rank calls it, and nothing else afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class Routes:
    """The connections that a program uses: ordered pairs of ranks, groups of ranks that sum, and
    the patience."""

    channels: frozenset[tuple[int, int]] = frozenset()
    groups: frozenset[tuple[int, ...]] = frozenset()
    timeout: timedelta = timedelta(seconds=300)

    @classmethod
    def of(
        cls, channels: Iterable[tuple[int, int]], groups: Iterable[tuple[int, ...]], seconds: float
    ) -> Routes:
        return cls(frozenset(channels), frozenset(groups), timedelta(seconds=seconds))


def clock_offset(transport: Transport) -> float:
    """Seconds to add to this rank's ``time.perf_counter`` to have rank 0's: the median difference
    after barriers; all ranks call it."""
    offsets: list[float] = []
    for _ in range(PINGS):
        transport.barrier()
        here = time.perf_counter()
        offsets.append(transport.share(here, 0) - here)
    return median(offsets)


def timed_out(what: str, seconds: float) -> TimeoutError:
    """The error of a wait for ``what`` that took too long, in torch's words."""
    return TimeoutError(f"Timed out waiting {seconds * 1e3:.0f}ms for {what}")


def in_short(text: str) -> str:
    """Torch's words without the place in its source, and without what they may mean."""
    return re.sub(r"\[/\S+:\d+\] |\. This (is typically|may indicate)[\s\S]*", "", text)
