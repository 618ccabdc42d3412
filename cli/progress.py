"""Shows the progress of a search on standard error, and stops it on Ctrl-C or SIGTERM."""

from __future__ import annotations

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
    from pipeloom.planner.solving.progress import Event, Searching
    from pipeloom.solver.core.progress import Progress

STDERR = 2
LEAST_SECONDS = 0.5
"""The minimum seconds between two lines on a search in a log."""


@dataclass
class ProgressDisplay:
    """A listener that prints the events of a search or plan: notes, and the progress of searches.

    On a terminal, the line of a search is overwritten; elsewhere, a new line is printed for each
    change. ``quiet``: print only notes that are not routine.
    """

    quiet: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _shown: dict[str, Progress] = field(default_factory=dict)
    """The progress that was last printed to a log for each search, by the name of the search."""
    _withheld: dict[str, Searching] = field(default_factory=dict)
    """The last progress of each search that was not printed to a log, by the search's name."""
    _open: str | None = None
    """The name of the search whose line is being overwritten on the terminal, or None."""

    def __call__(self, event: Event) -> None:
        from pipeloom.planner.solving.progress import Note, Searching

        if isinstance(event, Note):
            if not (self.quiet and event.routine):
                self.close()
                self._write(one_line(str(event)) + "\n")
        elif self.quiet:
            return
        elif isinstance(event, Searching):
            self._searching(event)
        else:
            self._line("several", str(event))

    def _searching(self, event: Searching) -> None:
        """Print the progress of a search; in a log, which gets no line for every event, only some.

        The first progress with a gap is printed. After it, progress is printed if the cost or the
        bound has changed: at once if :data:`LEAST_SECONDS` have passed since the last line, else
        by :meth:`close` unless other progress follows.
        """
        now, shown = event.now, self._shown.get(event.name)
        if not self.stream.isatty():
            if not now.built or now.gap is None:
                return
            if shown is not None:
                if (now.incumbent, now.bound) == (shown.incumbent, shown.bound):
                    return
                if now.seconds - shown.seconds < LEAST_SECONDS:
                    self._withheld[event.name] = event
                    return
        self._print(event)

    def _print(self, event: Searching) -> None:
        self._withheld.pop(event.name, None)
        self._shown[event.name] = event.now
        self._line(event.name, str(event))

    def _line(self, name: str, text: str) -> None:
        """Print a line about the search ``name``.

        On a terminal, it replaces the previous line about this search.
        """
        if not self.stream.isatty():
            self._write(f"{printable(text)}\n")
            return
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
        """End the line that is being overwritten, and print withheld progress."""
        for event in list(self._withheld.values()):
            self._print(event)
        if self._open is not None:
            self._write("\n")
            self._open = None


@contextmanager
def watched(quiet: bool = False) -> Iterator[ProgressDisplay]:
    """A context with a progress display; on exit, it ends the open line on the terminal."""
    display = ProgressDisplay(quiet)
    try:
        yield display
    finally:
        display.close()


@dataclass
class SignalFlag:
    """A callable that returns whether Ctrl-C was pressed or SIGTERM was received."""

    pressed: bool = False

    def __call__(self) -> bool:
        return self.pressed


@contextmanager
def interruptible() -> Iterator[SignalFlag]:
    """A context with a flag that is set by the first Ctrl-C or SIGTERM.

    A search can then stop with the best result so far. The second signal raises KeyboardInterrupt.
    """
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
