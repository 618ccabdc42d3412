"""Progress of planning: notes, and how far each search is."""

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
    """A line worth reading; ``routine``: not by someone who asked for quiet."""

    text: str
    routine: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Searching:
    """How far a search is. ``name``: what it is of, empty where it is the only one.

    ``by_step``: schedules are compared by their step, back to back, not by the objective.
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
    """The end of a search. ``ending``: why it ends where it has not proven its schedule optimal."""

    name: str
    schedule: Schedule
    ending: str
    by_step: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.ending}" if self.name else self.ending


@dataclass(frozen=True, slots=True)
class Finished:
    """How many of several solves are done, after so many seconds."""

    done: int
    of: int
    seconds: float

    @property
    def seconds_left(self) -> float:
        """An estimate: the others take as long as those done did."""
        return self.seconds * (self.of / self.done - 1)

    def __str__(self) -> str:
        left = timedelta(seconds=round(self.seconds_left))
        more = f", about {left} left" if self.done < self.of else ""
        return f"{self.done} of {self.of} solved in {self.seconds:.1f} s{more}"


Event: TypeAlias = Note | Searching | Searched | Finished
"""``str(event)`` is a line of text."""
Listener: TypeAlias = Callable[[Event], None]


def unheard(event: Event) -> None:
    """The listener of whoever wants to hear nothing."""


def labelled(label: str, listener: Listener) -> Listener:
    """``listener`` of one of several plans: ``label`` stands in front of the names of searches."""

    def listen(event: Event) -> None:
        if isinstance(event, Finished):
            listener(event)
        elif isinstance(event, Note):
            listener(replace(event, text=f"{label}: {event.text}"))
        else:
            name = f"{label}: {event.name}" if event.name else label
            listener(replace(event, name=name))

    return listen
