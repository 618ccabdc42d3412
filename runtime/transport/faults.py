"""An error on one rank ends all ranks, at once and with that error.

::

    rank 0   raises, publishes the error, closes its connections
    rank 1   waits for rank 0: the connection is closed; reads the error, closes its own connections
    rank 2   waits for rank 1: the same

A step without errors sends no additional message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pipeloom.ir.errors import PipeloomError

from .base import Fault, Transport

T = TypeVar("T")
EVERYWHERE = "everywhere"  # agreed in all replicas


@contextmanager
def ending_together(transport: Transport) -> Iterator[None]:
    """A context in which an exception ends all ranks, see :func:`ended`."""
    try:
        yield
    except Exception as error:
        raised = ended(transport, error)
        if raised is error:
            raise
        raise raised from error


def ended(transport: Transport, error: Exception) -> Exception:
    """Ends all ranks, including those of replicas, because of an error on this one.

    Does nothing if all have agreed on the error (:func:`agreed`). Returns the exception to raise:
    that of the first rank that failed, with its number; on that rank itself, ``error``.
    """
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
    """Marks an error that all ranks raise, so that they need not be ended, and returns it.

    If there are replicas, this holds only if all of them raise it (``everywhere``).
    """
    error.agreed = EVERYWHERE if everywhere else True  # type: ignore[attr-defined]
    return error


def gathered(transport: Transport, call: Callable[[], T]) -> list[T]:
    """Returns the result of ``call`` on each rank. If it raises on one, raises that on all."""
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
    """Whether the error may be caused by a connection that another rank closed."""
    while error is not None:
        if isinstance(error, OSError | RuntimeError):
            return True
        error = error.__cause__ or error.__context__
    return False
