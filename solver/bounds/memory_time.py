"""How much memory-time fits into a span: what a rank can hold rises after its start and falls to
its end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def span_that_holds(
    needed: float, limit: float, work: float, ramps: Callable[[float], float]
) -> float:
    """The least span T with ``ramps(T / 2)`` >= ``needed``, or a hair less.

    ``ramps``: the most that both halves of a span hold, by the length of a half; ``limit`` is the
    most at any moment, ``work`` what the rank computes.
    """
    if needed == 0:
        return 0.0
    low, high = 0.0, 2 * needed / limit + 2 * work
    for _ in range(100):
        half = (low + high) / 4
        if ramps(half) < needed:
            low = 2 * half
        else:
            high = 2 * half
    return float(low)


def ramp(limit: float, least: float, rho: float, time: float) -> float:
    """The integral of min(limit, least + rho t) over t in 0..time."""
    if not np.isfinite(rho):
        return limit * time
    rises = min(time, max(0.0, (limit - least) / rho)) if rho > 0 else time
    return rises * (least + rho * rises / 2) + (time - rises) * limit


def rate(size: float, time: float) -> float:
    """How fast ``size`` is taken or given back in ``time``."""
    return size / time if time > 0 else float("inf") if size > 0 else 0.0
