"""Ends all ranks and replicas if one rank fails; all of them raise its error.

::

    rank 0   raises, publishes the error in the store, closes its connections
    rank 1   waits for rank 0: the connection is closed; reads the error, closes its own connections
    rank 2   waits for rank 1: the same
    replica  waits for an average, until rank 0's process ends or the timeout: reads the error

A step without errors sends no additional message and makes no request to the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn, TypeVar

import torch.distributed as dist

from pipeloom.ir.errors import InputError, PipeloomError, in_words, of_rank

from ..errors import ExecutionError, ShapeError
from .store import LINGER, PATIENCE, Store, StoreLostError, in_short, this_rank_serves

if TYPE_CHECKING:
    from .base import Transport

T = TypeVar("T")
EVERYWHERE = "everywhere"  # value of an error's attribute ``agreed``, see :func:`agreed`
KINDS: dict[str, type[PipeloomError]] = {
    kind.__name__: kind for kind in (InputError, ShapeError, ExecutionError)
}


@dataclass(frozen=True, slots=True)
class RankFault:
    """The error of a rank, in a form that is published in the store; other ranks raise it, too.

    ``rank``: the rank that failed. ``kind``: the name of the error's class. ``text``: the error's
    message.
    """

    rank: int
    kind: str
    text: str
    process: int | None = None  # global rank; None: the caller has provided the transport
    guess: bool = False  # whether another rank, which does not answer, may be the cause
    absent: Sequence[int] = field(default=(), compare=False)
    """The processes that were missing where all were expected; one of them has failed."""

    @classmethod
    def of(cls, rank: int, error: Exception) -> RankFault:
        kind = next((kind for kind in type(error).__mro__ if kind.__name__ in KINDS), type(error))
        return cls(rank, kind.__name__, of_rank(rank, in_short(in_words(error))))

    def raised(self) -> PipeloomError:
        """Returns the exception to raise for this fault, with attributes ``rank`` and ``process``.

        The launcher reports ``process`` as failed.
        """
        error = KINDS.get(self.kind, ExecutionError)(self.text)
        error.rank, error.process = self.rank, self.process  # type: ignore[attr-defined]
        return error


class Faults:
    """The place where a pipeline and its replicas publish their first error: a key of the store.

    ``process``: the global rank of this process. ``members``: the processes of this pipeline's
    ranks, in rank order. All replicas use the ``key`` of the first one.
    """

    def __init__(self, store: Store, key: str, process: int, members: Sequence[int]) -> None:
        self._store, self.key = store, key
        self.process, self.members = process, list(members)

    def own(self, error: Exception) -> RankFault:
        """Returns ``error``, which this process has raised, as a fault."""
        return replace(RankFault.of(self.members.index(self.process), error), process=self.process)

    def there(self) -> bool:
        """Whether any process has published a fault."""
        return self._store.has(self.key)

    def first(self, fault: RankFault | None = None, *, seconds: float | None = None) -> RankFault:
        """Returns the first fault that any process has published.

        If there is none yet, first publishes ``fault``; if ``fault`` is None, there must be one.
        ``seconds``: if not None, the new time limit for all later requests to the store.
        """
        if seconds is not None:
            self._store.allow(seconds)
        if fault is None:
            return RankFault(*json.loads(self._store.get(self.key)))
        return RankFault(*json.loads(self._store.put_first(self.key, json.dumps(astuple(fault)))))

    def named(self, fault: RankFault) -> RankFault:
        """Returns ``fault``; if it is from another pipeline, its text is prefixed by the process.

        The prefix is like ``process 5``, with the global rank. The other pipeline may be a replica
        of this one.
        """
        if fault.process in self.members:
            return fault
        return replace(fault, text=f"process {fault.process}, {fault.text}")

    def silent(self, processes: Sequence[int]) -> tuple[list[int], str]:
        """Returns the processes that do not answer, and a text about them to append to a message.

        A process answers by calling this method, too, within one second. If more than one does not,
        they get two seconds more: some may only wait for one that hangs. The text is empty if all
        ``processes`` answer. If the store is lost, returns no processes and a text about that.
        """
        self._store.allow(4 * PATIENCE)
        key = f"{self.key}/ended"
        try:
            self._store.set(f"{key}/{self.process}")
            missing = self._store.missing(key, processes, PATIENCE)
            missing = self._store.missing(key, missing, 2 * PATIENCE, most=1)
        except StoreLostError as error:
            return [], f"; {error}"
        return missing, f"; no answer from {self.names(missing)}" if missing else ""

    def leave(self, processes: Sequence[int]) -> None:
        """Announces that this process makes no more requests to the store.

        If it serves the store, it then waits, at most LINGER seconds, until ``processes`` announce
        it, too.
        """
        self._store.allow(LINGER)
        key = f"{self.key}/left"
        with suppress(StoreLostError):
            self._store.set(f"{key}/{self.process}")
            if this_rank_serves():
                self._store.missing(key, processes, LINGER)

    def names(self, processes: Sequence[int]) -> str:
        """Returns a text with the ranks of ``processes``, for example ``rank 1, 2``.

        If one of them is not in this pipeline, the text has their global ranks: ``process 5, 6``.
        """
        if set(processes) <= set(self.members):
            return f"rank {', '.join(str(self.members.index(p)) for p in processes)}"
        return f"process {', '.join(map(str, processes))}"


@contextmanager
def ending_together(transport: Transport) -> Iterator[None]:
    """A context in which an exception on this rank ends all ranks, see :func:`end_all`."""
    try:
        yield
    except Exception as error:
        end_all(transport, error)


def end_all(transport: Transport, error: Exception) -> NoReturn:
    """Ends all ranks, including those of replicas, because of ``error`` on this one, and raises.

    Raises the error of the rank that failed first, whose message names that rank; on that rank
    itself, ``error``. If all ranks raise ``error`` anyway (:func:`agreed`), only raises it.
    """
    scope = getattr(error, "agreed", None)
    if scope == EVERYWHERE or (scope and not transport.replicated):
        raise error
    own = RankFault.of(transport.rank, error)
    first = transport.fail(own, asks=may_be_anothers(error))
    if first == own:
        raise error
    raise first.raised() from error


def agreed(error: PipeloomError, *, everywhere: bool = False) -> PipeloomError:
    """Marks an error that all ranks raise, so that they need not be ended; returns it.

    ``everywhere``: whether the ranks of all replicas raise it, too. If there are replicas, an error
    without this mark still ends all ranks.
    """
    error.agreed = EVERYWHERE if everywhere else True  # type: ignore[attr-defined]
    return error


def gathered(transport: Transport, call: Callable[[], T]) -> list[T]:
    """Returns the results of ``call`` on all ranks, in rank order; all ranks call this.

    If ``call`` raises a PipeloomError on a rank, all ranks raise it, with a message that names the
    rank.
    """
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
    """Whether the error may be the consequence of a connection that another rank has closed.

    True if it, or an error that caused it, is an OSError or a RuntimeError.
    """
    while error is not None:
        if isinstance(error, OSError | RuntimeError):
            return True
        error = error.__cause__ or error.__context__
    return False


def wait_for(work: dist.Work, timeout: timedelta | None, what: str) -> None:
    """Waits for a collective, ``work``.

    ``timeout``: the limit on a CPU. None on a GPU, where only the current stream waits. Raises
    ConnectionError, whose message begins with ``what``, after the limit or for an error of
    ``work``.
    """
    if timeout is None:
        work.wait()
        return
    try:
        work.wait(timeout)
    except RuntimeError as error:
        patience = f"waited at most {timeout.total_seconds():g} s"
        raise ConnectionError(f"{what}, {patience}: {error}") from error
