"""The interface of a transport, through which the executor communicates with other ranks.

Messages from one rank to another are received in the order in which they are sent. ``send`` and
``recv`` post a message and never block. ``wait`` of the handle that they return blocks (with NCCL,
it makes the current stream wait, not the host).
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

PINGS = 8  # measurements of the difference between two ranks' clocks


class Handle(Protocol):
    """A posted send or receive."""

    @property
    def wait(self) -> Callable[[], object]:
        """The function that waits until the message is sent or received; raises on a timeout."""
        ...


class Transport:
    """The connections of one rank to all others. This class serves a program with one rank.

    ``rank`` and ``size``: this rank, and the number of ranks. ``replicated``: whether the pipeline
    has replicas. ``faults``: the place where all ranks and replicas publish errors, or None.
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
        """Returns the function to call when all reads of a receive buffer have been issued.

        The function is called once after each receive into ``buffer``, before the next one. Returns
        None if nothing needs to be called. This method itself is called before the first use of
        ``buffer``.
        """
        return None

    def all_reduce(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        """Sums ``tensor`` in place over ``ranks``, which must be one of ``Routes.groups``."""

    def share(self, value: Any, source: int) -> Any:
        """Returns the ``value`` that rank ``source`` passed; all ranks call it."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """Returns the values that the ranks passed, in rank order; all ranks call it."""
        return [value]

    def barrier(self) -> None:
        """Waits until all ranks have called it."""

    def fail(self, fault: RankFault, *, asks: bool) -> RankFault:
        """Publishes the ``fault`` of this rank, and ends all waits between it and other ranks.

        Of several published faults, the first one is kept. With ``asks``, returns that one, as the
        fault of this rank may be a consequence of it; otherwise, returns ``fault``.
        """
        return fault

    def beside(self, routes: Routes) -> Transport:
        """Returns a new transport with ``routes`` between the same ranks; all ranks call it.

        Messages of the two transports are independent, but if a rank fails, the waits of both end.
        """
        return Transport()

    def close(self) -> None:
        """Closes the connections; all ranks call it, and nothing else afterwards."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The connections that a program uses.

    ``channels``: pairs (sender, receiver) of ranks. ``groups``: groups of ranks over which tensors
    are summed (``all_reduce``). ``timeout``: the time limit of each wait.
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
    """Returns the seconds to add to this rank's ``time.perf_counter`` to get that of rank 0.

    They are the median of differences that are measured after barriers. All ranks call it.
    """
    offsets: list[float] = []
    for _ in range(PINGS):
        transport.barrier()
        here = time.perf_counter()
        offsets.append(transport.share(here, 0) - here)
    return median(offsets)
