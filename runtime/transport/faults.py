"""An error on one rank ends all of them, at once and with that error.

::

    rank 0   raises, publishes it, closes its connections
    rank 1   waits for rank 0: the connection is closed; finds what rank 0 published, closes its own
    rank 2   waits for rank 1: the same

A step without errors does nothing of it: no message more, nothing that is asked of anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pipeloom.ir.errors import PipeloomError

from .base import Fault, Transport

T = TypeVar("T")
EVERYWHERE = "everywhere"  # in all replicas


@contextmanager
def ending_together(transport: Transport) -> Iterator[None]:
    """An exception within ends all ranks: :func:`ended`."""
    try:
        yield
    except Exception as error:
        raised = ended(transport, error)
        if raised is error:
            raise
        raise raised from error


def ended(transport: Transport, error: Exception) -> Exception:
    """Ends all ranks for an error on this one, those of replicas too, but for errors that all have
    agreed on. Returns what all raise: the first rank's, with the rank that it is of; on that rank
    itself the error as it is."""
    replicas, scope = transport.replicas, getattr(error, "agreed", None)
    if scope == EVERYWHERE or (scope and replicas is None):
        return error
    own, asks = Fault.of(transport.rank, error), may_be_anothers(error)
    told = replicas.found() if asks and replicas is not None else None
    first = transport.fail(told or own, asks=asks)
    if replicas is not None:
        replicas.publish(first)
    return error if first == own else first.raised()


def agreed(error: PipeloomError, *, everywhere: bool = False) -> PipeloomError:
    """An error that all ranks raise alike, after which they can go on together; where there are
    replicas, only if it is so ``everywhere`` in them."""
    error.agreed = EVERYWHERE if everywhere else True  # type: ignore[attr-defined]
    return error


def gathered(transport: Transport, call: Callable[[], T]) -> list[T]:
    """The results of each rank's call. Raises, on all ranks, what one raises."""
    mine: T | PipeloomError
    try:
        mine = call()
    except PipeloomError as error:
        mine = error
    rows = transport.gather(mine)
    for rank, row in enumerate(rows):
        if isinstance(row, PipeloomError):
            raise agreed(type(row)(f"rank {rank}: {row}"))
    return rows


def may_be_anothers(error: BaseException | None) -> bool:
    """Whether it may come of a connection that another rank has closed, as torch raises it."""
    while error is not None:
        if isinstance(error, OSError | RuntimeError):
            return True
        error = error.__cause__ or error.__context__
    return False
