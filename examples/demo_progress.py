"""Which phase the demo is in and for how long it has run, and the steps of a phase."""

from __future__ import annotations

import sys
import time


class Phases:
    """Prints one line as each of ``count`` phases begins; on a terminal also each step of it."""

    def __init__(self, count: int) -> None:
        self._count, self._number, self._begin = count, 0, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the first phase."""
        return time.perf_counter() - self._begin

    def begin(self, what: str) -> None:
        self._number += 1
        print(f"\n[{self._number}/{self._count}, {self.seconds:.0f} s] {what}", flush=True)

    def step(self, done: int, steps: int, loss: float) -> None:
        """Writes over the line before, where standard error is a terminal."""
        if sys.stderr.isatty():
            end = "\n" if done == steps else ""
            sys.stderr.write(f"\rstep {done} of {steps}, loss {loss:.3f}{end}")
            sys.stderr.flush()
