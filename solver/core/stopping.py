"""Criteria for when to stop (time, work, an interrupt), and budgets for parts of a solve."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pipeloom.ir.kernels import seconds_compiling

OPS_A_SECOND = 1e8  # roughly what the simulator does on one core
POLL = 0.05  # seconds between two checks whether to stop


class StoppingCriterion(Protocol):
    """A function that returns whether to stop. It is called many times per second."""

    def __call__(self) -> bool: ...


def clock() -> float:
    """The time of a monotonic clock, in seconds, that stands still while kernels are compiled."""
    return monotonic() - seconds_compiling()


class TimeLimit:
    """A time limit: ``seconds`` after the object is created, on :func:`clock`.

    Calling it returns whether the time is up.
    """

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
        """The share of the time that is left, 0 to 1.

        It is always 1 if ``seconds`` is inf, and 0 if ``seconds`` is 0.
        """
        if self.seconds <= 0.0:
            return 0.0
        return self.left / self.seconds if self.seconds < inf else 1.0


class WorkLimit:
    """A limit of ``ops`` simulated ops. Calling it returns whether they are used up.

    :meth:`spend` adds to the number of ops used. A computation other than simulation counts as the
    number of simulated ops that take about as long.
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
    """A flag that any thread may set. Calling it returns whether it is set.

    Kernels read ``flag``, an array of shape (1,).
    """

    def __init__(self) -> None:
        self.flag: npt.NDArray[np.bool_] = np.array([False])

    def __call__(self) -> bool:
        return bool(self.flag[0])

    def put(self, raised: bool = True) -> None:
        self.flag[0] = raised


class FirstOf:
    """A criterion to stop as soon as one of ``criteria`` says so; never, if there are none."""

    def __init__(self, *criteria: StoppingCriterion) -> None:
        self._criteria = criteria

    def __call__(self) -> bool:
        return any(criterion() for criterion in self._criteria)


class Budget(FirstOf):
    """A limit on time and work. Calling it returns whether to stop.

    True if ``seconds`` have passed since the budget was created, if ``ops`` simulated ops have been
    counted by ``work.spend``, or if ``interrupt`` is set.
    """

    def __init__(
        self, seconds: float = inf, ops: float = inf, interrupt: Interrupt | None = None
    ) -> None:
        self.time, self.work = TimeLimit(seconds), WorkLimit(ops)
        self.interrupt = interrupt or Interrupt()
        super().__init__(self.time, self.work, self.interrupt)

    def share(self, share: float = 1.0) -> Budget:
        """A budget that starts now, with a share of this one's original time and work."""
        return Budget(share * self.time.seconds, share * self.work.ops, self.interrupt)

    @property
    def seconds_left(self) -> float:
        """The seconds until this budget's time or work is used up.

        Work is converted to seconds by :data:`OPS_A_SECOND`.
        """
        return min(self.time.left, self.work.left / OPS_A_SECOND)

    def part(self, number: int) -> Budget:
        """A budget that starts now, with 1 / ``number`` of the time and work left in this one."""
        return Budget(self.time.left / number, self.work.left / number, self.interrupt)


NEVER: StoppingCriterion = FirstOf()
