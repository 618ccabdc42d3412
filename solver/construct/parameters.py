"""What a constructor of schedules leaves open: numbers that a search may turn."""

from __future__ import annotations

from typing import Protocol

from pipeloom.ir.model.ops import FloatArray, IntArray

from ..core.linear_instance import LinearInstance


class HeuristicParameters(Protocol):
    """The open numbers of one constructor."""

    def build(
        self, linear: LinearInstance, order: IntArray, f_end: FloatArray, b_end: FloatArray
    ) -> bool:
        """Fills ``order``, shape (S, 3M), with each stage's packed ops; False where it gets stuck.

        ``f_end``, ``b_end``: (S, M) scratch.
        """
        ...
