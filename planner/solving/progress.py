"""Progress of planning: notes, and the progress of each search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pipeloom.ir.model.schedule import Schedule
    from pipeloom.solver.core.progress import Progress


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the user; ``routine``: it is omitted by ``--quiet``."""

    text: str
    routine: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Searching:
    """The progress of a search. ``name``: what is searched; empty if there is only one search.

    ``by_step``: schedules are compared by step time in steady state instead of the objective.
    """

    name: str
    now: Progress
    by_step: bool = False

    def __str__(self) -> str:
        now, label = self.now, f"{self.name}: " if self.name else ""
        if now.incumbent is None:
            return f"{label}{now.seconds:.1f} s, no schedule yet"
        return f"{label}{now.seconds:.1f} s, {now.incumbent:g} ms, bound {now.bound:g} ms"


@dataclass(frozen=True, slots=True)
class Searched:
    """The end of a search. ``ending``: why it ended, if it did not prove optimality."""

    name: str
    schedule: Schedule
    ending: str
    by_step: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.ending}" if self.name else self.ending


@dataclass(frozen=True, slots=True)
class Finished:
    """The number of finished solves out of ``of``, after ``seconds``."""

    done: int
    of: int
    seconds: float

    @property
    def seconds_left(self) -> float:
        """An estimate: the remaining solves take as long on average as the finished ones."""
        return self.seconds * (self.of / self.done - 1)

    def __str__(self) -> str:
        left = timedelta(seconds=round(self.seconds_left))
        more = f", about {left} left" if self.done < self.of else ""
        return f"{self.done} of {self.of} solved in {self.seconds:.1f} s{more}"


Event: TypeAlias = Note | Searching | Searched | Finished
"""An event; ``str(event)`` is a line of text."""
Listener: TypeAlias = Callable[[Event], None]


def unheard(event: Event) -> None:
    """A listener that ignores all events."""


def labelled(label: str, listener: Listener) -> Listener:
    """``listener``, with ``label`` put before the names of searches."""

    def listen(event: Event) -> None:
        if isinstance(event, Finished):
            listener(event)
        elif isinstance(event, Note):
            listener(replace(event, text=f"{label}: {event.text}"))
        else:
            name = f"{label}: {event.name}" if event.name else label
            listener(replace(event, name=name))

    return listen
