"""Ranks of one pipeline that begin a step unlike each other are told at once, over Gloo.

::

    rank 0   step(program=...)   says so in the store, then waits for all to tell each other
    rank 1   step()              waits for a message; its watch looks into the store, finds rank 0
                                 in this step, says which ranks do what, and ends all waits

A thread of its own looks, and only where a step takes longer than GLANCE: one that is over sooner
asks nothing of anyone.
"""

from __future__ import annotations

import atexit
import json
import time
from dataclasses import astuple
from threading import Event, Thread

from pipeloom.ir.errors import of_rank
from pipeloom.ir.model.program import Program
from pipeloom.ir.units import counted

from ..transport import GroupTransport, Transport
from ..transport.base import Fault
from ..transport.store import LONGEST_PAUSE, PATIENCE, Store, StoreLostError
from .consistency import ranks_in_words

GLANCE, LONGEST = 0.25, 1.0
"""Seconds of a step until the store is looked into, and between two looks at most."""
MEETING = "ranks meet in step"


class StepWatch:
    """One rank's watch over its steps by ``program``, the pipeline's own."""

    def __init__(self, transport: Transport, program: Program) -> None:
        self._transport: GroupTransport | None = None
        if isinstance(transport, GroupTransport) and transport.backend == "gloo":
            self._transport = transport if transport.size > 1 else None
        self._said = f"the pipeline's own program ({named(program)})"
        self._step = self._over = self._met = 0
        self._closed = Event()
        self._thread: Thread | None = None

    def begin(self, step: int) -> None:
        """Begins a step in which this rank asks for nothing; others may."""
        self._step = step
        if self._thread is None and self._transport is not None:
            self._thread = Thread(target=self._watch, daemon=True, name="rank watches its steps")
            self._thread.start()
            atexit.register(self.close)

    def over(self) -> None:
        """The step is over: until the next the store is not looked into, as its process may end."""
        self._over = self._step

    def meet(self, step: int, said: str) -> None:
        """Says what this rank asks for in a step, for those that begin it without."""
        self._met = step
        if self._transport is not None:
            store = self._store(self._transport.timeout.total_seconds())
            store.set(_key(step, self._transport.rank), said)
            store.set(MEETING, str(step))

    def close(self) -> None:
        """No more looks."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(2 * PATIENCE)
            atexit.unregister(self.close)

    def _store(self, seconds: float) -> Store:
        assert self._transport is not None
        return Store(self._transport.group.get_group_store(), seconds)

    def _watch(self) -> None:
        seen, pause = 0, GLANCE
        store: Store | None = None
        while not self._closed.wait(pause):
            if seen != self._step or seen == self._over:
                seen, pause = self._step, GLANCE
                continue
            pause = min(2 * pause, LONGEST)
            try:
                store = store or self._store(PATIENCE)
                if self._looked(seen, store):
                    return
            except StoreLostError:  # whoever waits for a message is told of that
                return

    def _looked(self, step: int, store: Store) -> bool:
        """Whether a rank asks for something in this step, of which then all are told."""
        assert self._transport is not None
        store.allow(4 * PATIENCE)
        if not store.has(MEETING) or not self._met < (meeting := int(store.get(MEETING))) <= step:
            return False
        rank = self._transport.rank
        store.set(_key(meeting, rank), self._said)
        told = _told(store, [_key(meeting, each) for each in range(self._transport.size)])
        text = of_rank(rank, f"step: expected to begin alike on all ranks, got {told}")
        store.first("fault", json.dumps(astuple(Fault(rank, "InputError", text))))
        self._transport.disconnect()
        return True


def _key(step: int, rank: int) -> str:
    return f"{MEETING} {step}/{rank}"


def _told(store: Store, keys: list[str]) -> str:
    """All that ranks say within a second, each at its key, and which."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and not store.has(*keys):
        time.sleep(LONGEST_PAUSE)
    having: dict[str, list[int]] = {}
    for rank, key in enumerate(keys):
        if store.has(key):
            having.setdefault(store.get(key), []).append(rank)
    return ", ".join(f"{said} on {ranks_in_words(ranks)}" for said, ranks in having.items())


def named(program: Program) -> str:
    """A program in words: its family, and its microbatches."""
    report = program.schedule.report
    family = "a schedule" if report is None else report.family
    return f"{family} of {counted(program.schedule.problem.microbatches, 'microbatch')}"
