"""Progress of a solve on standard error, and Ctrl-C as "that is good enough"."""

from __future__ import annotations

import math
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pipeloom.solver.incumbent import Progress

# in a log: a line for a change, but not too many, and one now and then without
LEAST_SECONDS, MOST_SECONDS = 0.5, 10.0


@dataclass
class ProgressLine:
    """A single line that is written over on a terminal, a line a change elsewhere."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    quiet: bool = False
    label: str = ""
    _last: tuple[float | None, float] | None = None
    _last_time: float = -math.inf
    _open: bool = False

    def __call__(self, progress: Progress) -> None:
        if self.quiet:
            return
        now = (progress.incumbent, progress.bound)
        if self.stream.isatty():
            columns = (
                shutil.get_terminal_size().columns - 1
            )  # a wrapped line cannot be written over
            self._write(f"\r\x1b[2K{self._text(progress)[:columns]}")
            self._open = True
            return
        wait = LEAST_SECONDS if now != self._last else MOST_SECONDS
        if progress.seconds - self._last_time >= wait:
            self._write(self._text(progress) + "\n")
            self._last, self._last_time = now, progress.seconds

    def _text(self, progress: Progress) -> str:
        from pipeloom.report.words import duration, percent

        found = "none yet" if progress.incumbent is None else duration(progress.incumbent)
        gap = "" if progress.gap is None else f"  gap {percent(progress.gap)}"
        text = (
            f"{self.label}{progress.seconds:6.1f} s  best {found}  "
            f"bound {duration(progress.bound)}{gap}  {progress.source or ''}"
        )
        return text.rstrip()

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()

    def close(self) -> None:
        """Ends the line that a terminal shows."""
        if self._open:
            self._write("\n")
            self._open = False


@dataclass
class Interrupt:
    """Whether Ctrl-C was pressed."""

    pressed: bool = False

    def __call__(self) -> bool:
        return self.pressed


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """The first Ctrl-C only sets the flag, so that the best so far is kept; the second ends all."""
    interrupt = Interrupt()

    def press(number: int, frame: FrameType | None) -> None:
        if interrupt.pressed:
            raise KeyboardInterrupt
        interrupt.pressed = True

    before = signal.signal(signal.SIGINT, press)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
