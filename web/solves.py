"""The solves that the server runs: few at once, each in a thread, with a time limit, and with the
events that the page shows while it runs."""

from __future__ import annotations

import os
import secrets
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic
from typing import Any, TypeAlias

from pipeloom.ir.errors import Fault, InputError, PipeloomError
from pipeloom.planner.results.result import Result

MOST_AT_ONCE = 2
MOST_KEPT, MOST_OPS = 12, 10_000_000
"""Number of solves, and of ops in their schedules, that are kept; the oldest solves are dropped."""
MOST_SECONDS = 120.0
"""Time limit of a solve."""
MOST_EVENTS = 600
"""Number of events of a solve that are kept for readers that connect late."""
JOINING = 3.0
"""Seconds for which a solve that was asked to stop is waited for, before another one is started and
when the server ends."""


class State(Enum):
    """How a solve has ended."""

    DONE = "Done"
    STOPPED = "Stopped"
    OUT_OF_TIME = "Out of time"
    FAILED = "Failed"


class BusyError(PipeloomError):
    """Too many solves are running."""

    def __init__(self) -> None:
        super().__init__(f"solves: expected at most {MOST_AT_ONCE} at once: stop one first")


@dataclass(eq=False)
class Solve:
    """A job that runs in a thread.

    ``job``: a function that is called with the solve. It reports events with :meth:`tell` and
    results with :meth:`add`, and ends soon after :meth:`should_stop` returns true. ``rows``: its
    results so far. ``given``: the document of the profile, as it was received. ``facts``: options
    that the command for the same schedules has. ``events``: the latest events, each with its number
    in ``count``, the number of all events so far.
    """

    job: Job
    given: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = MOST_SECONDS
    name: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    rows: list[Result] = field(default_factory=list)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_EVENTS))
    count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _ended: threading.Event = field(default_factory=threading.Event)
    _begin: float = field(default_factory=monotonic)

    def should_stop(self) -> bool:
        return self._stopping.is_set() or self.age > self.seconds

    def stop(self) -> None:
        self._stopping.set()

    def wait_if_stopping(self) -> None:
        """If the solve was asked to stop, wait a moment until it ends."""
        if self._stopping.is_set():
            self._ended.wait(JOINING)

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    @property
    def age(self) -> float:
        """Seconds since the solve began."""
        return monotonic() - self._begin

    @property
    def ops(self) -> int:
        """The number of ops in the schedules of all results."""
        planned = [row.planned for row in list(self.rows) if row.planned is not None]
        return sum(len(ops) for schedule in planned for ops in schedule.order)

    def tell(self, kind: str, **facts: Any) -> None:
        """Add an event of the kind ``kind``. ``facts``: its JSON values."""
        with self._lock:
            self.count += 1
            self.events.append({"number": self.count, "kind": kind, **facts})

    def after(self, number: int) -> list[dict[str, Any]]:
        """The events after the one with this number, as far as they are kept."""
        with self._lock:
            return [event for event in self.events if event["number"] > number]

    def add(self, row: Result) -> int:
        """Add a result. Returns its index in ``rows``."""
        self.rows.append(row)
        return len(self.rows) - 1

    def run(self) -> None:
        """Run the job, and report how it has ended."""
        faults, state = [], State.DONE
        try:
            self.job(self)
        except Exception as error:  # the thread must not end without an event
            faults, state = faults_of(error), State.FAILED
        if self.should_stop() and not faults:
            state = State.STOPPED if self._stopping.is_set() else State.OUT_OF_TIME
        self.tell("end", state=state.value, seconds=self.age, faults=faults)
        self._ended.set()


Job: TypeAlias = Callable[[Solve], None]


def faults_of(error: Exception) -> list[dict[str, str]]:
    """The JSON objects of an error's faults: ``key``, ``words`` and the whole ``text`` of each."""
    if os.environ.get("PIPELOOM_TRACEBACK") and not isinstance(error, PipeloomError):
        traceback.print_exception(error)
    faults: Sequence[Fault] = [Fault(f"internal error: {type(error).__name__}")]
    if isinstance(error, PipeloomError):
        faults = list(map(Fault.of, error.lines))
    if isinstance(error, InputError):
        faults = error.faults
    return [{"key": each.key, "words": each.words, "text": str(each)} for each in faults]


class Solves:
    """The running and the latest finished solves, by name."""

    def __init__(self) -> None:
        self._known: dict[str, Solve] = {}
        self._lock = threading.Lock()

    def start(self, solve: Solve) -> Solve:
        """Start a solve in a thread. Raises BusyError if too many are running."""
        for each in list(self._known.values()):
            each.wait_if_stopping()
        with self._lock:
            if sum(each.is_running for each in self._known.values()) >= MOST_AT_ONCE:
                raise BusyError
            self._known[solve.name] = solve
            self._drop()
            # the prefix lets the command exit while a thread still computes
            thread = threading.Thread(target=solve.run, name=f"solve_{solve.name}", daemon=True)
            thread.start()
        return solve

    def _drop(self) -> None:
        """Drop the oldest solves that have ended while too many, or too large ones, are kept."""
        for each in [each for each in self._known.values() if not each.is_running]:
            ops = sum(kept.ops for kept in self._known.values())
            if len(self._known) > MOST_KEPT or ops > MOST_OPS:
                del self._known[each.name]

    def get(self, name: str) -> Solve:
        """The solve with this name. Raises KeyError if there is none, or if it was dropped."""
        return self._known[name]

    def close(self) -> None:
        """Stop all solves, and wait a moment for them."""
        solves = list(self._known.values())
        for solve in solves:
            solve.stop()
        for solve in solves:
            solve.wait_if_stopping()
