"""The thread rank that the current thread is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .in_process import Hub


@dataclass(frozen=True, slots=True)
class Place:
    """The thread rank that a thread is."""

    hub: Hub
    rank: int


_HERE = threading.local()


def here() -> Place | None:
    """The thread rank that this thread is; None where it is none."""
    place: Place | None = getattr(_HERE, "place", None)
    return place


@contextmanager
def being(hub: Hub, rank: int) -> Iterator[None]:
    """A context in which this thread is thread rank ``rank`` of ``hub``."""
    _HERE.place = Place(hub, rank)
    try:
        yield
    finally:
        _HERE.place = None
