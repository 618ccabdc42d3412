"""The interface of a transport, through which the executor communicates with other ranks.

Messages from one rank to another are received in the order in which they are sent. ``send`` and
``recv`` post a message and never block; ``wait`` of the returned handle blocks (on a GPU, it makes
the current stream wait, not the host).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from .faults import Faults, RankFault

PINGS = 8


class Handle(Protocol):
    """A posted message."""

    @property
    def wait(self) -> Callable[[], object]:
        """Waits until the message is received, or sent. Raises on a timeout."""
        ...


class Transport:
    """The connections of one rank to all others. This class serves a program with one rank.

    ``rank`` and ``size``: this rank and the number of ranks. ``replicated``: whether the pipeline
    has replicas. ``faults``: where their errors are published; None: nothing is known of them.
    """

    rank, size = 0, 1
    replicated = False
    faults: Faults | None = None

    def send(self, tensor: Tensor, peer: int) -> Handle:
        """Posts a contiguous tensor, which must not change until the handle's ``wait`` returns."""
        raise NotImplementedError

    def recv(self, buffer: Tensor, peer: int) -> Handle:
        """Posts a receive; ``buffer`` may be written until the handle's ``wait`` returns."""
        raise NotImplementedError

    def releasing(self, buffer: Tensor) -> Callable[[], None] | None:
        """Returns the function to call before ``buffer`` is received into again, or None.

        It is called when all reads of the buffer have been issued. This method is called before the
        buffer's first use.
        """
        return None

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        """Sums ``tensor`` in place over ``ranks``, one of the groups given at construction."""

    def share(self, value: Any, source: int) -> Any:
        """Returns the ``value`` that rank ``source`` passed; all ranks call it."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """Returns the values that the ranks passed, in rank order; all ranks call it."""
        return [value]

    def barrier(self) -> None:
        """Waits until all ranks have called it."""

    def fail(self, fault: RankFault, *, asks: bool) -> RankFault:
        """Publishes a fault of this rank and ends all waits between it and other ranks.

        Of several ranks' faults, the first is kept. With ``asks``, returns that one, since the
        fault of this rank may be a consequence of it; otherwise ``fault``.
        """
        return fault

    def beside(self, routes: Routes) -> Transport:
        """Returns a new transport between the same ranks; all ranks call it.

        Messages of the two are independent, but if a rank fails, the waits of both end.
        """
        return Transport()

    def close(self) -> None:
        """Closes the connections; all ranks call it, and nothing else afterwards."""


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
