"""What one piece of work may take: seconds, or simulated ops where those are counted instead."""

from __future__ import annotations

from time import monotonic

import numpy as np
import numpy.typing as npt

OPS_A_SECOND = 1e8
"""What turns one into the other, roughly: ops that the simulator does on one core."""


class Allowance:
    """``ops`` are counted as they are spent, ``seconds`` run from the moment it is made.

    Work of another kind counts as the ops that would take about as long. ``stopped`` is a flag,
    shape (1,), that another thread raises where the work is not wanted any more.
    """

    def __init__(
        self,
        seconds: float = float("inf"),
        ops: float = float("inf"),
        stopped: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self.ops = ops
        self._stopped = stopped
        self.used = 0.0
        self._seconds = seconds
        self._deadline = monotonic() + seconds

    @property
    def share_left(self) -> float:
        """Of the seconds; 1 where they do not count."""
        return self.seconds_left / self._seconds if self._seconds < float("inf") else 1.0

    def again(self, share: float = 1.0) -> Allowance:
        """As much once more from now on, or a share of it."""
        return Allowance(share * self._seconds, share * self.ops, self._stopped)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - monotonic())

    def spend(self, ops: float) -> None:
        self.used += ops

    @property
    def spent(self) -> bool:
        """Whether either has come to its end, or all is over."""
        return self.used >= self.ops or monotonic() > self._deadline or self.stopped

    @property
    def stopped(self) -> bool:
        return self._stopped is not None and bool(self._stopped[0])
