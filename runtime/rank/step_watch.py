"""Ranks of one pipeline that begin a step unlike each other are told at once, over Gloo.

::

    rank 0   step(program=...)   says so in the store, then waits for all to tell each other
    rank 1   step()              waits for a message; its watch looks into the store, finds rank 0
                                 in this step, says which ranks do what, and ends all waits

What a few ranks are to agree on, a parameter's copies say, they meet for in the same way, at a
place of their own.

A thread of its own looks, and only where a step takes longer than GLANCE: one that is over sooner
asks nothing of anyone. It knows the watch by a weak reference, and ends with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Event, Thread, current_thread
from typing import TypeAlias
from weakref import finalize, ref

from pipeloom.ir.errors import of_rank
from pipeloom.ir.model.program import Program
from pipeloom.ir.units import counted

from ..transport import GroupTransport, Transport
from ..transport.base import Fault
from ..transport.making import FAULT
from ..transport.store import PATIENCE, Store, StoreLostError
from .consistency import ranks_in_words

GLANCE, LONGEST = 0.25, 1.0
"""Seconds of a step until the store is looked into, and between two looks at most."""
MEETING = "ranks meet in step"
Ranks: TypeAlias = tuple[int, ...]
ALL: Ranks = ()  # all ranks meet


class StepWatch:
    """One rank's watch over its steps by ``program``, the pipeline's own; ``groups``: this rank's
    among those of fewer ranks that may meet."""

    def __init__(
        self, transport: Transport, program: Program, groups: Iterable[Ranks] = ()
    ) -> None:
        self._transport: GroupTransport | None = None
        if isinstance(transport, GroupTransport) and transport.backend == "gloo":
            self._transport = transport if transport.size > 1 else None
        self._said = f"the pipeline's own program ({named(program)})"
        self._step = self._over = 0
        self._met: dict[Ranks, int] = dict.fromkeys((ALL, *groups), 0)  # the last step
        self._seen, self._pause = 0, GLANCE
        self._kept: Store | None = None
        self._end: finalize[..., StepWatch] | None = None  # once there is a thread

    def begin(self, step: int) -> None:
        """Begins a step in which this rank asks for nothing; others may."""
        self._step = step
        if self._end is None and self._transport is not None:
            closed = Event()
            args = ref(self), closed
            thread = Thread(target=_watch, args=args, daemon=True, name="rank watches its steps")
            self._end = finalize(self, _ended, closed, thread)  # at the process's end, too
            thread.start()

    def over(self) -> None:
        """The step is over: until the next the store is not looked into, as its process may end."""
        self._over = self._step

    def meet(self, step: int, said: str, ranks: Ranks = ALL) -> None:
        """Says what this rank asks ``ranks`` for in a step, for those that begin it without."""
        self._met[ranks] = step
        if self._transport is not None:
            store = self._store(self._transport.timeout.total_seconds())
            store.set(f"{_key(ranks, step)}/{self._transport.rank}", said)
            store.set(_key(ranks), str(step))

    def close(self) -> None:
        """No more looks."""
        if self._end is not None:
            self._end()

    def _store(self, seconds: float) -> Store:
        assert self._transport is not None
        return Store(self._transport.group.get_group_store(), seconds)

    def glance(self) -> float | None:
        """Looks into the store, if a step has taken long; the seconds until the next look, None
        where there is to be none."""
        if self._seen != self._step or self._seen == self._over:
            self._seen, self._pause = self._step, GLANCE
            return GLANCE
        self._pause = min(2 * self._pause, LONGEST)
        try:
            self._kept = self._kept or self._store(PATIENCE)
            return None if self._looked(self._seen, self._kept) else self._pause
        except StoreLostError:  # whoever waits for a message is told of that
            return None

    def _looked(self, step: int, store: Store) -> bool:
        """Whether a rank asks for something in this step, of which then all are told."""
        assert self._transport is not None
        for ranks, met in self._met.items():
            store.allow(4 * PATIENCE)
            key = _key(ranks)
            if not store.has(key) or not met < (meeting := int(store.get(key))) <= step:
                continue
            rank, key = self._transport.rank, _key(ranks, meeting)
            store.set(f"{key}/{rank}", self._said)
            told = _told(store, key, ranks or range(self._transport.size))
            whose = ranks_in_words(ranks) if ranks else "all ranks"
            text = of_rank(rank, f"step: expected to begin alike on {whose}, got {told}")
            store.first(FAULT, Fault(rank, "InputError", text).written())
            self._transport.disconnect()
            return True
        return False


def _watch(of: ref[StepWatch], closed: Event) -> None:
    pause: float | None = GLANCE
    while pause is not None and not closed.wait(pause):
        watch = of()
        pause = None if watch is None else watch.glance()
        del watch  # not held while the thread waits


def _ended(closed: Event, thread: Thread) -> None:
    """No more looks: as the watch is closed or dropped, or the process ends."""
    closed.set()
    if thread is not current_thread():
        thread.join(2 * PATIENCE)


def _key(ranks: Ranks, step: int | None = None) -> str:
    """The key of the last step in which these ranks meet, or of what is said in a ``step``."""
    return f"{ranks} {MEETING}" + ("" if step is None else f" {step}")


def _told(store: Store, key: str, ranks: Sequence[int]) -> str:
    """All that ranks say within a second, and which."""
    absent = store.missing(key, ranks, PATIENCE)
    having: dict[str, list[int]] = {}
    for rank in (rank for rank in ranks if rank not in absent):
        having.setdefault(store.get(f"{key}/{rank}"), []).append(rank)
    return ", ".join(f"{said} on {ranks_in_words(which)}" for said, which in having.items())


def named(program: Program) -> str:
    """A program in words: its family, and its microbatches."""
    report = program.schedule.report
    family = "a schedule" if report is None else report.family
    return f"{family} of {counted(program.schedule.problem.microbatches, 'microbatch')}"
