"""Progress of a solve on standard error, and Ctrl-C or SIGTERM as "that is good enough"."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pipeloom.ir.model.schedule import Schedule
    from pipeloom.planner.progress import Event, Searched, Searching
    from pipeloom.solver.core.progress import Progress

STDERR = 2
LEAST_SECONDS = 0.5
"""In a log: a line for a change, but not too many; the last one comes in any case."""
PROVEN = 1e-6


@dataclass
class ProgressLine:
    """A single line that is written over on a terminal, a line a change elsewhere.

    ``by_step``: what it is told is of steps, not of the objective.
    """

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    quiet: bool = False
    label: str = ""
    by_step: bool = False
    _now: Progress | None = None
    _last: tuple[float | None, float] | None = None
    _last_time: float = -math.inf
    _open: bool = False

    def __call__(self, progress: Progress) -> None:
        self._now = progress
        if self.quiet:
            return
        if self.stream.isatty():
            self._write_over(self._text(progress))
            return
        now = (progress.incumbent, progress.bound)
        # once it is proven the end's line comes next
        news = progress.built and progress.gap is not None and progress.gap > PROVEN
        if news and now != self._last and progress.seconds - self._last_time >= LEAST_SECONDS:
            self._write(self._text(progress) + "\n")
            self._last, self._last_time = now, progress.seconds

    def end(self, schedule: Schedule, ending: str = "time is up") -> None:
        """The last line: what came out, and why it ends where it is not proven optimal; by step
        that of the last that it was told."""
        from pipeloom.ir.model.schedule import Status
        from pipeloom.report.summaries import gap

        report, timing, now = schedule.report, schedule.timing, self._now
        if self.quiet or report is None or timing is None or report.lower_bound is None:
            return
        seconds, proven = report.solve_seconds or 0.0, report.status is Status.OPTIMAL
        cost, bound = timing.cost(schedule.problem.objective), report.lower_bound
        rest = gap(schedule) or 0.0
        if self.by_step and now is not None and now.incumbent is not None:
            cost, bound, rest = now.incumbent, now.bound, now.gap or 0.0
            proven = rest <= PROVEN
        text = self._figures(seconds, cost, bound, rest)
        why = "optimal" if proven else ending
        if self.stream.isatty():
            self._write_over(f"{text}  {why}")
        else:
            self._write(f"{text}  {why}\n")

    def _text(self, progress: Progress) -> str:
        if progress.incumbent is None or not progress.built:
            return f"{self.label}{progress.seconds:6.1f} s  looking for a first schedule"
        figures = self._figures(
            progress.seconds, progress.incumbent, progress.bound, progress.gap or 0.0
        )
        return f"{figures}  {progress.source or ''}".rstrip()

    def _figures(self, seconds: float, cost: float, bound: float, gap: float) -> str:
        from pipeloom.ir.units import duration
        from pipeloom.report.summaries import percent

        return (
            f"{self.label}{seconds:6.1f} s  {'step' if self.by_step else 'best'} {duration(cost)}  "
            f"bound {duration(bound)}  gap {percent(gap)}"
        )

    def _write_over(self, text: str) -> None:
        columns = shutil.get_terminal_size().columns - 1  # a wrapped line cannot be written over
        self._write(f"\r\x1b[2K{text[:columns]}")
        self._open = True

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()

    def close(self) -> None:
        """Ends the line that a terminal shows."""
        if self._open:
            self._write("\n")
            self._open = False


@dataclass
class ProgressDisplay:
    """Shows the events of a plan: notes, and a line for each of its searches.

    ``quiet``: only notes that are no routine.
    """

    quiet: bool = False
    _lines: dict[str, ProgressLine] = field(default_factory=dict)
    _last: ProgressLine | None = None

    def __call__(self, event: Event) -> None:
        from pipeloom.planner.progress import Note, Searching

        if isinstance(event, Note):
            if not (self.quiet and event.routine):
                self.close()
                print(f"pipeloom: {event}", file=sys.stderr)
            return
        line = self._line(event)
        if isinstance(event, Searching):
            line(event.now)
        else:
            line.end(event.schedule, event.ending)
            line.close()

    def _line(self, event: Searching | Searched) -> ProgressLine:
        """The line of the search; that of another one ends where it is."""
        if event.name not in self._lines:
            label = f"{event.name}: " if event.name else ""
            self._lines[event.name] = ProgressLine(
                quiet=self.quiet, label=label, by_step=event.by_step
            )
        line = self._lines[event.name]
        if line is not self._last:
            self.close()
        self._last = line
        return line

    def close(self) -> None:
        """Ends the line that a terminal shows."""
        if self._last is not None:
            self._last.close()


@contextmanager
def watched(quiet: bool = False) -> Iterator[ProgressDisplay]:
    """A display that leaves no line open on the terminal."""
    display = ProgressDisplay(quiet)
    try:
        yield display
    finally:
        display.close()


@dataclass
class Interrupt:
    """Whether Ctrl-C was pressed, or the process told to end (SIGTERM)."""

    pressed: bool = False

    def __call__(self) -> bool:
        return self.pressed


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """The first Ctrl-C or SIGTERM only sets the flag, so that the best so far is kept; the second
    ends all."""
    interrupt = Interrupt()

    def press(number: int, frame: FrameType | None) -> None:
        if interrupt.pressed:
            raise KeyboardInterrupt
        interrupt.pressed = True
        _acknowledge("pipeloom: stopping: keeping the best so far\n")

    before = {number: signal.signal(number, press) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _acknowledge(line: str) -> None:
    """Past Python's buffer, which the signal may have come in the middle of."""
    over = "\r\x1b[2K" if os.isatty(STDERR) else ""
    with suppress(OSError):
        os.write(STDERR, (over + line).encode())
