"""Stopping criteria: time, work, an interrupt, and the budget of one piece of work."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeloom.ir.kernels import seconds_compiling

OPS_A_SECOND = 1e8  # roughly what the simulator does on one core


class StoppingCriterion(Protocol):
    """Whether to stop; asked many times per second."""

    def __call__(self) -> bool: ...


def clock() -> float:
    """Seconds since some moment, but for those in which kernels are compiled."""
    return monotonic() - seconds_compiling()


class TimeLimit:
    """``seconds`` by :func:`clock` from the moment it is made."""

    def __init__(self, seconds: float = inf) -> None:
        self.seconds = seconds
        self._deadline = clock() + seconds

    def __call__(self) -> bool:
        return self.left <= 0.0

    @property
    def left(self) -> float:
        return max(0.0, self._deadline - clock())

    @property
    def share_left(self) -> float:
        """1 where time is unlimited, 0 where there is none."""
        if self.seconds <= 0.0:
            return 0.0
        return self.left / self.seconds if self.seconds < inf else 1.0


class WorkLimit:
    """``ops`` simulated ops, as they are spent; other work counts as what takes about as long."""

    def __init__(self, ops: float = inf) -> None:
        self.ops = ops
        self.used = 0.0

    def __call__(self) -> bool:
        return self.used >= self.ops

    @property
    def left(self) -> float:
        return max(0.0, self.ops - self.used)

    def spend(self, ops: float) -> None:
        self.used += ops


class Interrupt:
    """A flag that any thread may raise; kernels read the array, shape (1,)."""

    def __init__(self, *, raised: bool = False) -> None:
        self.flag: npt.NDArray[np.bool_] = np.array([raised])

    def __call__(self) -> bool:
        return bool(self.flag[0])

    def put(self, raised: bool = True) -> None:
        self.flag[0] = raised


class FirstOf:
    """Whichever of its criteria comes first."""

    def __init__(self, *criteria: StoppingCriterion) -> None:
        self._criteria = criteria

    def __call__(self) -> bool:
        return any(criterion() for criterion in self._criteria)


class Budget(FirstOf):
    """``time`` runs from the moment it is made, ``work`` is counted as it is spent.

    The budget is over where either has come to its end, or ``interrupt`` is raised.
    """

    def __init__(
        self, seconds: float = inf, ops: float = inf, interrupt: Interrupt | None = None
    ) -> None:
        self.time, self.work = TimeLimit(seconds), WorkLimit(ops)
        self.interrupt = interrupt or Interrupt()
        super().__init__(self.time, self.work, self.interrupt)

    def share(self, share: float = 1.0) -> Budget:
        """A budget of a share of this one as it was at first, from now on."""
        return Budget(share * self.time.seconds, share * self.work.ops, self.interrupt)

    @property
    def seconds_left(self) -> float:
        """Seconds until its time or its work is used up."""
        return min(self.time.left, self.work.left / OPS_A_SECOND)

    def part(self, number: int) -> Budget:
        """A budget of one of ``number`` equal parts of what is left of this one, from now on."""
        return Budget(self.time.left / number, self.work.left / number, self.interrupt)


NEVER: StoppingCriterion = FirstOf()
