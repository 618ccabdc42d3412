"""Events that planning functions report to a listener: notes, the progress of a search, and the
number of finished solves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pipeloom.solver.core.progress import Progress


@dataclass(frozen=True, slots=True)
class Note:
    """A line of text for the user. ``routine``: whether ``--quiet`` suppresses it; otherwise it is
    always shown."""

    text: str
    routine: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Searching:
    """An event: the progress of a search.

    ``name``: what is searched; empty if there is only one search. ``now``: the best schedule's
    cost, the lower bound and the seconds spent so far. ``by_step``: whether schedules are compared
    by step time in steady state; otherwise they are compared by the objective.
    """

    name: str
    now: Progress
    by_step: bool = False

    def __str__(self) -> str:
        from pipeloom.ir.units import duration
        from pipeloom.report.summaries import percent

        now = self.now
        head = f"{self.name + ': ' if self.name else ''}{now.seconds:6.1f} s  "
        if now.incumbent is None or not now.built:
            return f"{head}looking for a first schedule"
        cost = f"{'step' if self.by_step else 'best'} {duration(now.incumbent)}"
        gap, method = percent(now.gap or 0.0), now.method or ""
        return f"{head}{cost}  bound {duration(now.bound)}  gap {gap}  {method}".rstrip()


@dataclass(frozen=True, slots=True)
class Finished:
    """An event: ``done`` out of ``of`` solves have finished within ``seconds``."""

    done: int
    of: int
    seconds: float

    @property
    def seconds_left(self) -> float:
        """Estimate of the remaining seconds, if each remaining solve takes as long as the finished
        ones took on average."""
        return self.seconds * (self.of / self.done - 1)

    def __str__(self) -> str:
        left = timedelta(seconds=round(self.seconds_left))
        more = f", about {left} left" if self.done < self.of else ""
        return f"{self.done} of {self.of} solved in {self.seconds:.1f} s{more}"


Event: TypeAlias = Note | Searching | Finished
"""An event; ``str(event)`` is a line of text for the user."""
Listener: TypeAlias = Callable[[Event], None]


def unheard(event: Event) -> None:
    """Ignore an event. Functions use this as the listener if the caller gives none."""


def labelled(label: str, listener: Listener) -> Listener:
    """Return a listener that passes events on to ``listener``, with ``label`` put before the texts
    of notes and before the names of searches."""

    def listen(event: Event) -> None:
        if isinstance(event, Finished):
            listener(event)
        elif isinstance(event, Note):
            listener(replace(event, text=f"{label}: {event.text}"))
        else:
            name = f"{label}: {event.name}" if event.name else label
            listener(replace(event, name=name))

    return listen
