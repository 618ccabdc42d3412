"""Progress of planning: notes, and the progress of each search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pipeloom.ir.model.schedule import Schedule
    from pipeloom.solver.core.progress import Progress


PROVEN = 1e-6
"""A gap that counts as closed."""


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
    ``ending``: why the search has ended, or ``optimal``; empty as long as it goes on.
    """

    name: str
    now: Progress
    by_step: bool = False
    ending: str = ""

    @classmethod
    def ended(
        cls, name: str, schedule: Schedule, ending: str, last: Progress | None = None
    ) -> Searching:
        """The end of a search. ``last``: its last progress, if schedules were compared by step."""
        from pipeloom.ir.model.schedule import Status, gap_between
        from pipeloom.solver.core.progress import Progress

        report, timing = schedule.known_report, schedule.known_timing
        seconds, proven = report.solve_seconds or 0.0, report.status is Status.OPTIMAL
        cost, bound = timing.cost(schedule.problem.objective), report.lower_bound or 0.0
        now = Progress(seconds, cost, bound, gap_between(cost, bound), report.method)
        if last is not None and last.incumbent is not None:
            now = replace(last, seconds=seconds)
            proven = (now.gap or 0.0) <= PROVEN
        return cls(name, now, last is not None, "optimal" if proven else ending)

    def __str__(self) -> str:
        from pipeloom.ir.units import duration
        from pipeloom.report.summaries import percent

        now = self.now
        head = f"{self.name + ': ' if self.name else ''}{now.seconds:6.1f} s  "
        if now.incumbent is None or not (self.ending or now.built):
            return f"{head}looking for a first schedule"
        cost = f"{'step' if self.by_step else 'best'} {duration(now.incumbent)}"
        gap, words = percent(now.gap or 0.0), self.ending or now.method or ""
        return f"{head}{cost}  bound {duration(now.bound)}  gap {gap}  {words}".rstrip()


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


Event: TypeAlias = Note | Searching | Finished
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
