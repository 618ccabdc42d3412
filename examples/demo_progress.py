"""The progress of the demo: its current phase, the elapsed time, and the training steps of the
phase."""

from __future__ import annotations

import sys
import time


class Phases:
    """Prints a line at the start of each of ``count`` phases and, on a terminal, for each training
    step."""

    def __init__(self, count: int) -> None:
        self._count, self._number, self._begin = count, 0, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the start of the demo."""
        return time.perf_counter() - self._begin

    def begin(self, what: str) -> None:
        self._number += 1
        print(f"\n[{self._number}/{self._count}, {self.seconds:.0f} s] {what}", flush=True)

    def step(self, done: int, steps: int, loss: float) -> None:
        """Print the current step over the previous one, if standard error is a terminal.

        ``done``: number of finished steps out of ``steps``.
        """
        if sys.stderr.isatty():
            end = "\n" if done == steps else ""
            sys.stderr.write(f"\rstep {done} of {steps}, loss {loss:.3f}{end}")
            sys.stderr.flush()
