"""The making of pipelines, by all ranks at once: within a time, and with whose fault it was.

::

    rank 0   check  1  ties  1  connect ...                  1  all ranks are there
    rank 1   check  1  raises, tells the store
    rank 2   check  1  ties, waits: finds what rank 1 told

Ranks meet in the store of ``torch.distributed``, before collectives that would wait for a rank
which never comes, or not name it. Where some have not come in time it is told, and each rank that
waits, there or for a connection, sees it and answers: of those that have not come the fault is of
those that do not answer either. What ranks pass are Python literals: nothing that is read there is
run.
"""

from __future__ import annotations

import os
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .base import Fault
from .faults import may_be_anothers
from .store import (
    GROUP,
    LATE,
    PATIENCE,
    SLACK,
    Store,
    StoreLostError,
    names_of,
    rendezvous,
    within,
)

FAULT = "fault"
_Made = TypeVar("_Made")


class ToldError(Exception):
    """A fault that was found in the store: all ranks are to raise it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


class Making:
    """One rank's part in making something, of which each process makes its own at the same time;
    ``members``: the processes whose ranks are the program's, ``place``: where they all are then."""

    place = "make their Pipeline"

    def __init__(
        self, store: Store, process: int, size: int, members: Sequence[int], seconds: float
    ) -> None:
        self.process, self._store, self._seconds = process, store, seconds
        self._members, self._everyone = list(members), tuple(range(size))
        number = self._store.add(f"pipeloom/made by {self.process}", 1)
        self._key, self._fault = f"pipeloom/{number}", f"pipeloom/{number}/{FAULT}"
        self._meetings: Counter[tuple[int, ...]] = Counter()

    def exchange(self, value: Any, processes: Sequence[int] = ()) -> list[Any]:
        """The literals that ``processes`` (by default all) passed, in their order; each calls it.

        Raises ToldError for a fault of any process, and once the time is over."""
        members = tuple(processes) or self._everyone
        self._store.allow(self._seconds + PATIENCE)
        self._meetings[members] += 1
        place = f"{self._key}/{hash(members)}/{self._meetings[members]}"
        self._store.set(f"{place}/{self.process}", repr(value))
        self._wait(place, members)
        return [literal_eval(self._store.get(f"{place}/{p}")) for p in members]

    def _wait(self, place: str, members: Sequence[int]) -> None:
        def look() -> None:
            if self._store.has(self._fault) and self._store.missing(place, members, 0.0):
                self._look()

        absent = self._store.missing(place, members, self._seconds, look=look)
        if absent:
            text = f"not there where all ranks {self.place}, waited at most {self._seconds:g} s"
            self._store.allow(PATIENCE)
            own = Fault(absent[0], "", text, guess=True, absent=absent)
            raise ToldError(self._store.told(self._fault, own))

    def initialise(self, backend: str) -> None:
        """Makes the process group of all."""
        make = partial(
            dist.init_process_group,
            backend,
            store=self._store.whole,
            rank=self.process,
            world_size=len(self._everyone),
            timeout=timedelta(seconds=self._seconds),
        )
        self.connected(make, self._seconds)

    def connected(self, make: Callable[[], _Made], seconds: float) -> _Made:
        """The process group that ``make`` makes; ToldError for a fault of any process meanwhile."""
        self._store.allow(seconds + SLACK + PATIENCE)
        return within(seconds + SLACK, make, GROUP, self._look)

    def _look(self) -> None:
        if self._store.has(self._fault):
            raise ToldError(self._store.told(self._fault))

    def end(self, error: Exception) -> Exception:
        """The error to raise, instead of this rank's: that of the first that failed."""
        self._store.allow(LATE)
        try:
            return self._of_all(error)
        finally:
            self._store.leave(f"{self._key}/ended", self.process, self._everyone)

    def _of_all(self, error: Exception) -> Exception:
        if isinstance(error, ToldError):
            first = error.fault
        else:
            guess = may_be_anothers(error)
            own = replace(Fault.of(self._rank(self.process), error), guess=guess)
            first = self._store.told(self._fault, replace(own, rank=self.process))
            if getattr(error, "agreed", False) or (first.rank == self.process and not guess):
                return error
        return self._raised(self._called(first) if first.guess else first)

    def _called(self, fault: Fault) -> Fault:
        """With the ranks that say nothing, the first of which it is then of."""
        ended = f"{self._key}/ended"
        missing, words = self._store.silent(ended, self.process, self._everyone, self._names)
        text = f"{fault.text}{words}"
        if fault.absent:
            text = f"{self._names(missing or fault.absent)}: {fault.text}{'' if missing else words}"
        return replace(fault, rank=missing[0] if missing else fault.rank, text=text)

    def _raised(self, fault: Fault) -> Exception:
        if fault.rank in self._members:
            return replace(fault, rank=self._rank(fault.rank)).raised()
        return replace(fault, text=f"process {fault.rank}, {fault.text}").raised()

    def _rank(self, process: int) -> int:
        return self._members.index(process)

    def _names(self, processes: Sequence[int]) -> str:
        if set(processes) <= set(self._members):
            return names_of([self._rank(p) for p in processes])
        return names_of(processes, "process")


_UNDER_WAY: ContextVar[Making | None] = ContextVar("making", default=None)


@contextmanager
def made_together(group: dist.ProcessGroup | None, seconds: float) -> Iterator[None]:
    """A context in which each rank makes its pipeline, left once all have. An exception within ends
    all ranks, which raise it with the rank that it is of, as does one that does not come within
    ``seconds``."""
    world = dist.group.WORLD
    if world is None:
        yield
        return

    def make() -> Making:
        """With the ranks of ``group``, by default those of ``torch.distributed``."""
        members = dist.get_process_group_ranks(group or world)
        store = Store(world.get_group_store(), seconds)
        return Making(store, dist.get_rank(), dist.get_world_size(), members, seconds)

    with _together(make):
        yield


def meet(own: Any, backend: Callable[[list[Any]], str], seconds: float) -> None:
    """Initialises ``torch.distributed``, which all processes do, each with a literal of its ``own``
    for ``backend``, which chooses from those of all ranks.

    Raises ExecutionError that names the processes which do not come within ``seconds``."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def make() -> Making:
        store = Store(rendezvous(rank, size, seconds), seconds)
        return Making(store, rank, size, range(size), seconds)

    with _together(make) as making:
        making.place = "start"
        making.initialise(backend(making.exchange(own)))


@contextmanager
def _together(make: Callable[[], Making]) -> Iterator[Making]:
    making, before = None, _UNDER_WAY.get()
    try:
        making = make()
        _UNDER_WAY.set(making)
        yield making
        making.exchange(None)
    except Exception as error:
        may_be_lost = isinstance(error, ToldError) or may_be_anothers(error)
        try:
            raised = error if making is None else making.end(error)
        except StoreLostError as lost:
            raised = lost if may_be_lost else error
        if raised is error:
            raise
        raise raised from (None if isinstance(error, ToldError) else error)
    finally:
        _UNDER_WAY.set(before)


def new_group(
    ranks: Sequence[int],
    timeout: timedelta,
    backend: str | None = None,
    device: torch.device | None = None,
) -> dist.ProcessGroup | None:
    """All processes call it, as torch's; it returns None where this one is not of ``ranks``.

    With a GPU as ``device`` the ranks connect here, not at the first message.
    """
    make = partial(dist.new_group, list(ranks), timeout=timeout, backend=backend, device_id=device)
    making, seconds = _UNDER_WAY.get(), timeout.total_seconds()
    if making is None:
        group = within(seconds + SLACK, make, GROUP)
    else:
        group = making.connected(make, seconds)
    return group if isinstance(group, dist.ProcessGroup) else None


def gather_early(value: Any, group: dist.ProcessGroup | None, seconds: float) -> list[Any]:
    """The values of all ranks of ``group`` (by default: of all processes), before there is a
    transport: Python literals; every rank calls it."""
    if not dist.is_initialized():
        return [value]
    making = _UNDER_WAY.get()
    if making is None:
        with made_together(group, seconds):
            return gather_early(value, group, seconds)
    return making.exchange(value, dist.get_process_group_ranks(group or dist.group.WORLD))
