"""Creation of pipelines by all ranks at once: within a time limit, and naming the rank at fault.

::

    rank 0   check  1  ties  1  connect ...                  1  all ranks are there
    rank 1   check  1  raises, publishes the error in the store
    rank 2   check  1  ties, waits: finds rank 1's error

Ranks meet in the store of ``torch.distributed`` before they call collectives, which would wait for
a rank that never comes, or not name it. If some ranks do not come in time, this is published; each
rank that waits for them or for a connection sees it and answers. Among the missing ranks, those
that do not answer either are at fault. Values are exchanged as Python literals, so reading them
cannot run code.
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

from .faults import Faults, RankFault, may_be_anothers
from .store import GROUP, LATE, PATIENCE, SLACK, Store, StoreLostError, rendezvous, within

_Made = TypeVar("_Made")


class Making:
    """One rank's part in the joint creation of an object by all processes.

    ``members``: the processes that are the program's ranks. ``place``: the text of what all do.
    """

    place = "make their Pipeline"

    def __init__(
        self, store: Store, process: int, size: int, members: Sequence[int], seconds: float
    ) -> None:
        self._process, self._store, self._seconds = process, store, seconds
        self._everyone = tuple(range(size))
        self._key = f"pipeloom/{self._store.add(f'pipeloom/made by {process}', 1)}"
        self.faults = Faults(store, f"{self._key}/fault", process, members)
        # of the pipeline that is being created, when it runs
        self.running = Faults(store, f"{self._key}/fault of {members[0]}", process, members)
        self._meetings: Counter[tuple[int, ...]] = Counter()

    def exchange(self, value: Any, processes: Sequence[int] = ()) -> list[Any]:
        """Returns the literals of ``processes`` (by default, all) in their order; each calls it.

        Raises ConnectionError for a fault of any process or after the time limit.
        """
        members = tuple(processes) or self._everyone
        self._store.allow(self._seconds + PATIENCE)
        self._meetings[members] += 1
        place = f"{self._key}/{hash(members)}/{self._meetings[members]}"
        self._store.set(f"{place}/{self._process}", repr(value))
        self._wait(place, members)
        return [literal_eval(self._store.get(f"{place}/{p}")) for p in members]

    def _wait(self, place: str, members: Sequence[int]) -> None:
        def look() -> None:
            if self.faults.there() and self._store.missing(place, members, 0.0):
                self._look()

        absent = self._store.missing(place, members, self._seconds, look=look)
        if absent:
            text = f"not there where all ranks {self.place}, waited at most {self._seconds:g} s"
            self._store.allow(PATIENCE)
            own = RankFault(absent[0], "", text, absent[0], guess=True, absent=absent)
            raise ConnectionError(self.faults.first(own).text)

    def initialise(self, backend: str) -> None:
        """Creates the process group of all processes."""
        make = partial(
            dist.init_process_group,
            backend,
            store=self._store.whole,
            rank=self._process,
            world_size=len(self._everyone),
            timeout=timedelta(seconds=self._seconds),
        )
        self.connected(make, self._seconds)

    def connected(self, make: Callable[[], _Made], seconds: float) -> _Made:
        """Returns the process group of ``make``. Raises ConnectionError for another's fault."""
        self._store.allow(seconds + SLACK + PATIENCE)
        return within(seconds + SLACK, make, GROUP, self._look)

    def _look(self) -> None:
        if self.faults.there():
            raise ConnectionError(self.faults.first().text)

    def end(self, error: Exception) -> Exception:
        """Returns the error to raise in place of this rank's: that of the first failed rank."""
        self._store.allow(LATE)
        try:
            own = replace(self.faults.own(error), guess=may_be_anothers(error))
            first = self.faults.first(own)
            if getattr(error, "agreed", False) or (first == own and not own.guess):
                return error
            return self.faults.named(self._completed(first) if first.guess else first).raised()
        finally:
            self.faults.leave(self._everyone)

    def _completed(self, fault: RankFault) -> RankFault:
        """Adds the processes that do not answer to a fault, which becomes the first one's."""
        missing, words = self.faults.silent(self._everyone)
        text = f"{fault.text}{words}"
        if fault.absent:
            names = self.faults.names(missing or fault.absent)
            text = f"{names}: {fault.text}{'' if missing else words}"
        process, members = missing[0] if missing else fault.process, self.faults.members
        rank = members.index(process) if process in members else fault.rank
        return replace(fault, rank=rank, process=process, text=text)


_UNDER_WAY: ContextVar[Making | None] = ContextVar("making", default=None)


@contextmanager
def made_together(group: dist.ProcessGroup | None, seconds: float) -> Iterator[None]:
    """A context in which all ranks create their pipelines; it is left once all have.

    An exception inside it ends all ranks, which raise it with its rank. The same happens if a rank
    does not come within ``seconds``.
    """
    world = dist.group.WORLD
    if world is None:
        yield
        return

    def make() -> Making:
        """Returns the Making for ``group``, by default for all processes."""
        members = dist.get_process_group_ranks(group or world)
        store = Store(world.get_group_store(), seconds)
        return Making(store, dist.get_rank(), dist.get_world_size(), members, seconds)

    with _together(make):
        yield


def meet(own: Any, backend: Callable[[list[Any]], str], seconds: float) -> None:
    """Initializes ``torch.distributed``; all processes call it.

    ``backend`` chooses the backend from the literals ``own`` of all processes. Raises
    ExecutionError with the processes that do not come within ``seconds``.
    """
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
        try:
            raised = error if making is None else making.end(error)
        except StoreLostError as lost:
            raised = lost if may_be_anothers(error) else error
        if raised is error:
            raise
        raise raised from error
    finally:
        _UNDER_WAY.set(before)


def new_group(
    ranks: Sequence[int],
    timeout: timedelta,
    backend: str | None = None,
    device: torch.device | None = None,
) -> dist.ProcessGroup | None:
    """Same as ``torch.distributed.new_group``; returns None if this process is not in ``ranks``.

    All processes call it. If ``device`` is a GPU, the ranks connect here and not at the first
    message.
    """
    make = partial(dist.new_group, list(ranks), timeout=timeout, backend=backend, device_id=device)
    making, seconds = _UNDER_WAY.get(), timeout.total_seconds()
    if making is None:
        group = within(seconds + SLACK, make, GROUP)
    else:
        group = making.connected(make, seconds)
    return group if isinstance(group, dist.ProcessGroup) else None


def faults_under_way() -> Faults | None:
    """Returns where errors of the pipeline will be published that is being created, if one is."""
    making = _UNDER_WAY.get()
    return None if making is None else making.running


def gather_early(value: Any, group: dist.ProcessGroup | None, seconds: float) -> list[Any]:
    """Returns the literals of all ranks of ``group`` (by default, all processes) before connecting.

    All ranks call it.
    """
    if not dist.is_initialized():
        return [value]
    making = _UNDER_WAY.get()
    if making is None:
        with made_together(group, seconds):
            return gather_early(value, group, seconds)
    return making.exchange(value, dist.get_process_group_ranks(group or dist.group.WORLD))
