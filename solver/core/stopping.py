"""Stopping criteria: time, work, an interrupt."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import Protocol

import numpy as np
import numpy.typing as npt


class StoppingCriterion(Protocol):
    """Whether to stop; asked many times a second."""

    def __call__(self) -> bool: ...


class TimeLimit:
    """``seconds`` from the moment it is made."""

    def __init__(self, seconds: float = inf) -> None:
        self.seconds = seconds
        self._deadline = monotonic() + seconds

    def __call__(self) -> bool:
        return self.left <= 0.0

    @property
    def left(self) -> float:
        return max(0.0, self._deadline - monotonic())

    @property
    def share_left(self) -> float:
        """1 where time is unlimited."""
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


class InterruptFlag:
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


NEVER: StoppingCriterion = FirstOf()
