"""Creates pipelines on all ranks at the same time, within a time limit; names a rank that fails.

::

    rank 0   check  |  ties  |  connect ...                  |  all ranks have created theirs
    rank 1   check  |  raises, publishes the error in the store
    rank 2   check  |  ties, waits: finds rank 1's error

At each ``|``, ranks exchange values through the store of ``torch.distributed``. They do so before
they call collectives, which would wait for a missing rank forever, or would not name it. If some
ranks are missing after the time limit, the first rank to notice publishes that in the store. Each
rank that waits for others or for a connection reads it and answers. Of the missing ranks, those
that do not answer either have failed. Values are exchanged as Python literals, so reading them
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
from typing import Any

import torch
import torch.distributed as dist

from .faults import Faults, RankFault, may_be_anothers
from .store import PATIENCE, Store, StoreLostError, rendezvous


class Making:
    """This process's part in the creation of an object, such as a pipeline, by all processes.

    ``process`` and ``size``: the global rank of this process, and the number of all processes.
    ``members``: the processes that are the ranks of this program, in rank order. ``seconds``: the
    time limit of each wait. ``place``: the text in error messages for what all processes do.
    ``faults``: where errors of the creation are published; ``running``: where errors of the
    finished pipeline are published.
    """

    place = "make their Pipeline"

    def __init__(
        self, store: Store, process: int, size: int, members: Sequence[int], seconds: float
    ) -> None:
        self._process, self._store, self._seconds = process, store, seconds
        self._everyone = tuple(range(size))
        self._key = f"pipeloom/{self._store.add(f'pipeloom/made by {process}', 1)}"
        self.faults = Faults(store, f"{self._key}/fault", process, members)
        self.running = Faults(store, f"{self._key}/fault of {members[0]}", process, members)
        self._meetings: Counter[tuple[int, ...]] = Counter()

    def exchange(self, value: Any, processes: Sequence[int] = ()) -> list[Any]:
        """Returns the values that ``processes`` (by default, all) have passed, in their order.

        Each of ``processes`` calls it. Values are Python literals. Raises ConnectionError if any
        process publishes an error meanwhile, or after the time limit.
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
        """Initializes ``torch.distributed`` for all processes, with this backend."""
        dist.init_process_group(
            backend,
            store=self._store.whole,
            rank=self._process,
            world_size=len(self._everyone),
            timeout=timedelta(seconds=self._seconds),
        )

    def _look(self) -> None:
        if self.faults.there():
            raise ConnectionError(self.faults.first().text)

    def end(self, error: Exception) -> Exception:
        """Publishes the error of this rank, and returns the error to raise instead.

        That is the error of the rank that failed first, or ``error`` if this rank did.
        """
        self._store.allow(PATIENCE)
        try:
            own = replace(self.faults.own(error), guess=may_be_anothers(error))
            first = self.faults.first(own)
            if getattr(error, "agreed", False) or (first == own and not own.guess):
                return error
            return self.faults.named(self._completed(first) if first.guess else first).raised()
        finally:
            self.faults.leave(self._everyone)

    def _completed(self, fault: RankFault) -> RankFault:
        """Returns ``fault`` with the names of the processes that do not answer, if there are any.

        The first of them is then reported as the process that has failed.
        """
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
    """A context in which all ranks create their pipelines; its exit waits for all ranks.

    ``group``: the process group of this pipeline's ranks; by default, all processes. If one rank
    raises an exception in the context, all ranks raise it, with a message that names that rank. If
    a rank does not arrive within ``seconds``, all other ranks raise an ExecutionError that names
    it. The context does nothing if ``torch.distributed`` is not initialized.
    """
    world = dist.group.WORLD
    if world is None:
        yield
        return

    def make() -> Making:
        members = dist.get_process_group_ranks(group or world)
        store = Store(world.get_group_store(), seconds)
        return Making(store, dist.get_rank(), dist.get_world_size(), members, seconds)

    with _together(make):
        yield


def meet(own: Any, backend: Callable[[list[Any]], str], seconds: float) -> None:
    """Initializes ``torch.distributed``; all processes call it.

    ``own``: a Python literal that describes this process. ``backend``: returns the name of the
    backend to use, given the literals of all processes by global rank. Raises ExecutionError with
    the processes that do not arrive within ``seconds``.
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
    """Creates a process group, as ``torch.distributed.new_group``; all processes call it.

    Returns None if this process is not in ``ranks``. If ``device`` is a GPU, the ranks connect here
    and not at the first message. Raises an error after ``timeout``.
    """
    group = dist.new_group(list(ranks), timeout=timeout, backend=backend, device_id=device)
    return group if isinstance(group, dist.ProcessGroup) else None


def faults_under_way() -> Faults | None:
    """Returns where the pipeline that is being created will publish errors.

    Returns None outside of :func:`made_together`.
    """
    making = _UNDER_WAY.get()
    return None if making is None else making.running


def gather_early(value: Any, group: dist.ProcessGroup | None, seconds: float) -> list[Any]:
    """Returns the values that all ranks of ``group`` (by default, all processes) have passed.

    They are in rank order, and must be Python literals. All ranks call it. It works before the
    ranks have a transport.
    """
    if not dist.is_initialized():
        return [value]
    making = _UNDER_WAY.get()
    if making is None:
        with made_together(group, seconds):
            return gather_early(value, group, seconds)
    return making.exchange(value, dist.get_process_group_ranks(group or dist.group.WORLD))
