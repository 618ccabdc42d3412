"""Progress of a solve on standard error; Ctrl-C or SIGTERM ends it with the best result so far."""

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

from pipeloom.ir.errors import printable

from .failures import one_line

if TYPE_CHECKING:
    from pipeloom.planner.solving.progress import Event, Finished, Searched, Searching
    from pipeloom.solver.core.progress import Progress

STDERR = 2
LEAST_SECONDS = 0.5
"""Minimum seconds between lines in a log, except before the last line."""
PROVEN = 1e-6


@dataclass(slots=True)
class _LastLine:
    """The last line of a search; ``figures``: the cost and bound in it, printed ``at`` that time in
    seconds."""

    now: Progress | None = None
    figures: tuple[float | None, float] | None = None
    at: float = -math.inf


@dataclass
class ProgressDisplay:
    """A listener that shows the events of a plan: notes, and progress of searches.

    On a terminal, each search has a line that is overwritten; elsewhere, a new line is printed for
    each change. ``quiet``: print only notes that are not routine.
    """

    quiet: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _searches: dict[str, _LastLine] = field(default_factory=dict)
    _open: str | None = None
    """The search whose line is being overwritten on a terminal."""

    def __call__(self, event: Event) -> None:
        from pipeloom.planner.solving.progress import Finished, Note, Searching

        if isinstance(event, Note):
            if not (self.quiet and event.routine):
                self.close()
                self._write(one_line(str(event)) + "\n")
        elif isinstance(event, Finished):
            if not self.quiet:
                self._finished(event)
        elif not self.quiet:
            shown = self._searches.setdefault(event.name, _LastLine())
            if isinstance(event, Searching):
                self._searching(event, shown)
            else:
                self._searched(event, shown)

    def _searching(self, event: Searching, shown: _LastLine) -> None:
        shown.now = now = event.now
        if self.stream.isatty():
            self._write_over(event.name, _line_of(event))
            return
        figures = (now.incumbent, now.bound)
        # if it is proven, the final line follows
        news = now.built and now.gap is not None and now.gap > PROVEN
        if news and figures != shown.figures and now.seconds - shown.at >= LEAST_SECONDS:
            self._write(printable(_line_of(event)) + "\n")
            shown.figures, shown.at = figures, now.seconds

    def _searched(self, event: Searched, shown: _LastLine) -> None:
        """Show the final line: the result, and why the search ended if it is not proven optimal."""
        line = _end_of(event, shown.now)
        if line is not None and self.stream.isatty():
            self._write_over(event.name, line)
        elif line is not None:
            self._write(printable(line) + "\n")
        self.close()

    def _finished(self, event: Finished) -> None:
        if self.stream.isatty():
            self._write_over("several", str(event))
        else:
            self._write(f"{event}\n")

    def _write_over(self, name: str, text: str) -> None:
        if name != self._open:
            self.close()
        columns = shutil.get_terminal_size().columns - 1  # a wrapped line cannot be overwritten
        self._write(f"\r\x1b[2K{printable(text)[:columns]}")
        self._open = name

    def _write(self, text: str) -> None:
        with suppress(OSError):  # progress is not essential
            self.stream.write(text)
            self.stream.flush()

    def close(self) -> None:
        """End the line that is being overwritten."""
        if self._open is not None:
            self._write("\n")
            self._open = None


def _line_of(event: Searching) -> str:
    now = event.now
    if now.incumbent is None or not now.built:
        return f"{_label(event)}{now.seconds:6.1f} s  looking for a first schedule"
    figures = _figures(event, now.seconds, now.incumbent, now.bound, now.gap or 0.0)
    return f"{figures}  {now.method or ''}".rstrip()


def _end_of(event: Searched, now: Progress | None) -> str | None:
    """The final line of a search; None if nothing is proven.

    If schedules are compared by step, its values are those of the last progress event.
    """
    from pipeloom.ir.model.schedule import Status
    from pipeloom.report.summaries import gap

    schedule = event.schedule
    report, timing = schedule.report, schedule.timing
    if report is None or timing is None or report.lower_bound is None:
        return None
    proven, rest = report.status is Status.OPTIMAL, gap(schedule) or 0.0
    cost, bound = timing.cost(schedule.problem.objective), report.lower_bound
    if event.by_step and now is not None and now.incumbent is not None:
        cost, bound, rest = now.incumbent, now.bound, now.gap or 0.0
        proven = rest <= PROVEN
    figures = _figures(event, report.solve_seconds or 0.0, cost, bound, rest)
    return f"{figures}  {'optimal' if proven else event.ending}"


def _figures(
    event: Searching | Searched, seconds: float, cost: float, bound: float, gap: float
) -> str:
    from pipeloom.ir.units import duration
    from pipeloom.report.summaries import percent

    return (
        f"{_label(event)}{seconds:6.1f} s  {'step' if event.by_step else 'best'} {duration(cost)}  "
        f"bound {duration(bound)}  gap {percent(gap)}"
    )


def _label(event: Searching | Searched) -> str:
    return f"{event.name}: " if event.name else ""


@contextmanager
def watched(quiet: bool = False) -> Iterator[ProgressDisplay]:
    """A display whose line on the terminal is ended on exit."""
    display = ProgressDisplay(quiet)
    try:
        yield display
    finally:
        display.close()


@dataclass
class SignalFlag:
    """Whether Ctrl-C was pressed or SIGTERM was received."""

    pressed: bool = False

    def __call__(self) -> bool:
        return self.pressed


@contextmanager
def interruptible() -> Iterator[SignalFlag]:
    """The first Ctrl-C or SIGTERM sets the flag, so that the search stops with the best result so
    far; the second one ends the process."""
    interrupt = SignalFlag()

    def press(number: int, frame: FrameType | None) -> None:
        if interrupt.pressed:
            raise KeyboardInterrupt
        interrupt.pressed = True
        line = "pipeloom: stopping: keeping the best so far\n"
        over = "\r\x1b[2K" if os.isatty(STDERR) else ""
        with suppress(OSError):  # bypasses Python's buffer, which the signal may have interrupted
            os.write(STDERR, (over + line).encode())

    before = {number: signal.signal(number, press) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
