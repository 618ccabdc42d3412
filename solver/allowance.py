"""What one piece of work may take: seconds, or simulated ops where those are counted instead."""

from __future__ import annotations

from time import monotonic

OPS_A_SECOND = 1e8
"""What turns one into the other, roughly: ops that the simulator does on one core."""


class Allowance:
    """``ops`` are counted as they are spent, ``seconds`` run from the moment it is made.

    Work of another kind counts as the ops that would take about as long.
    """

    def __init__(self, seconds: float = float("inf"), ops: float = float("inf")) -> None:
        self.ops = ops
        self.used = 0.0
        self._deadline = monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - monotonic())

    def spend(self, ops: float) -> None:
        self.used += ops

    @property
    def spent(self) -> bool:
        """Whether either has come to its end."""
        return self.used >= self.ops or monotonic() > self._deadline
