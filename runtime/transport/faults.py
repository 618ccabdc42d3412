"""An error on one rank ends all of them, at once and with that error.

::

    rank 0   raises, publishes it, closes its connections
    rank 1   waits for rank 0: the connection is closed; finds what rank 0 published, closes its own
    rank 2   waits for rank 1: the same

A step without errors does nothing of it: no message more, nothing that is asked of anyone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeloom.ir.errors import PipeloomError

from .base import Fault, Transport


@contextmanager
def ending_together(transport: Transport) -> Iterator[None]:
    """An exception within ends all ranks: they raise it as well, with the rank that it is of; but
    for those that all have agreed on."""
    try:
        yield
    except Exception as error:
        if getattr(error, "agreed", False):
            raise
        first = transport.fail(Fault.of(transport.rank, error), asks=_may_be_anothers(error))
        if first.rank == transport.rank:
            raise
        raise first.raised() from error


def agreed(error: PipeloomError) -> PipeloomError:
    """An error that all ranks raise alike, after which they can go on together."""
    error.agreed = True  # type: ignore[attr-defined]
    return error


def _may_be_anothers(error: BaseException | None) -> bool:
    """Whether it may come of a connection that another rank has closed, as torch raises it."""
    while error is not None:
        if isinstance(error, OSError | RuntimeError):
            return True
        error = error.__cause__ or error.__context__
    return False
