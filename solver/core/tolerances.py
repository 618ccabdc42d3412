"""The relative tolerances of the solver, and the number of items that fit into memory."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.ops import FloatArray, IntArray

ROUNDING = 1e-9  # tolerance of a memory limit, as sums of sizes are rounded
CLOSED = 1e-6  # largest gap between cost and bound at which a schedule counts as optimal
QUOTIENT = 1e-12  # tolerance of a quotient, far smaller than that of a limit


def counts_within(
    room: FloatArray | float, size: FloatArray | IntArray | float, most: float
) -> FloatArray:
    """The number of items of ``size`` that fit into ``room``: whole numbers, as floats.

    The numbers are from 0 to ``most``. ``room`` and ``size`` are broadcast against each other; the
    result has their common shape. A quotient just below a whole number is rounded up to it, so that
    a ``room`` that is a multiple of ``size`` is filled. ``room`` is the unused part of a limit that
    already includes its tolerance (:data:`ROUNDING`), so that no schedule that simulators and
    verifiers accept is excluded. The solver counts items in memory only with this function.
    """
    room, size = np.asarray(room, dtype=np.float64), np.asarray(size, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        fit = np.where(size > 0, np.floor(room / size * (1 + QUOTIENT)), np.inf)
    return np.clip(fit, 0.0, most)
