"""How near is equal: the solver's relative tolerances, and how many sizes fit into memory."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.ops import FloatArray, IntArray

ROUNDING = 1e-9  # slack of a memory limit: sums of sizes are rounded
CLOSED = 1e-6  # gap of cost and lower bound at which a schedule counts as optimal
_QUOTIENT = 1e-12  # slack of a quotient, far below that of a limit


def counts_within(
    room: FloatArray | float, size: FloatArray | IntArray | float, most: float
) -> FloatArray:
    """How many of ``size`` fit into ``room``, from 0 to ``most``.

    ``room`` is what is left of a limit that has its slack (:data:`ROUNDING`) already, so that all
    that simulators and verifiers admit fits. Nothing else in the solver counts how many sizes fit.
    A quotient just below a whole number counts as that number, so that a ``room`` which is itself
    a multiple of ``size`` loses none.
    """
    room, size = np.asarray(room, dtype=np.float64), np.asarray(size, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        fit = np.where(size > 0, np.floor(room / size * (1 + _QUOTIENT)), np.inf)
    return np.clip(fit, 0.0, most)
