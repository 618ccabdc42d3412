"""Stopping criteria: time, work, an interrupt; and budgets for parts of a solve."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeloom.ir.kernels import seconds_compiling

OPS_A_SECOND = 1e8  # roughly what the simulator does on one core


class StoppingCriterion(Protocol):
    """Whether to stop; called many times per second."""

    def __call__(self) -> bool: ...


def clock() -> float:
    """A monotonic clock in seconds that stands still while kernels are compiled."""
    return monotonic() - seconds_compiling()


class TimeLimit:
    """A limit of ``seconds``, measured by :func:`clock` from its creation on."""

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
        """The share of the time that is left; 1 if time is unlimited, 0 if the limit is 0."""
        if self.seconds <= 0.0:
            return 0.0
        return self.left / self.seconds if self.seconds < inf else 1.0


class WorkLimit:
    """A limit of ``ops`` simulated ops.

    :meth:`spend` counts them; other work counts as the ops that take about as long.
    """

    def __init__(self, ops: float = inf, used: float = 0.0) -> None:
        self.ops, self.used = ops, used

    def __call__(self) -> bool:
        return self.used >= self.ops

    @property
    def left(self) -> float:
        return max(0.0, self.ops - self.used)

    def spend(self, ops: float) -> None:
        self.used += ops


class Interrupt:
    """A flag that any thread may set. Kernels read ``flag``, shape (1,)."""

    def __init__(self) -> None:
        self.flag: npt.NDArray[np.bool_] = np.array([False])

    def __call__(self) -> bool:
        return bool(self.flag[0])

    def put(self, raised: bool = True) -> None:
        self.flag[0] = raised


class FirstOf:
    """Stops when any of its criteria does."""

    def __init__(self, *criteria: StoppingCriterion) -> None:
        self._criteria = criteria

    def __call__(self) -> bool:
        return any(criterion() for criterion in self._criteria)


class Budget(FirstOf):
    """A limit on time and work. It is over if either is used up or ``interrupt`` is set.

    ``time`` runs from the creation of the budget; ``work`` is counted by its ``spend``.
    """

    def __init__(
        self, seconds: float = inf, ops: float = inf, interrupt: Interrupt | None = None
    ) -> None:
        self.time, self.work = TimeLimit(seconds), WorkLimit(ops)
        self.interrupt = interrupt or Interrupt()
        super().__init__(self.time, self.work, self.interrupt)

    def share(self, share: float = 1.0) -> Budget:
        """A budget that starts now, with a share of what this one had at its creation."""
        return Budget(share * self.time.seconds, share * self.work.ops, self.interrupt)

    @property
    def seconds_left(self) -> float:
        """Seconds until time or work is used up, work converted by :data:`OPS_A_SECOND`."""
        return min(self.time.left, self.work.left / OPS_A_SECOND)

    def part(self, number: int) -> Budget:
        """A budget that starts now, with one of ``number`` equal parts of what is left."""
        return Budget(self.time.left / number, self.work.left / number, self.interrupt)


NEVER: StoppingCriterion = FirstOf()
