"""The instance and the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from pipeloom.ir.costs import Costs
from pipeloom.ir.profile import Profile, StageProfile
from pipeloom.ir.simulate import run_kernel, simulate
from pipeloom.solver.families import build_family

RANKS, MICROBATCHES = 32, 256


def unequal_profile(seed: int = 0) -> Profile:
    """No two stages and no two links alike: times +-20 %, delays 0.2 to 0.6 ms."""
    random = np.random.default_rng(seed)
    times = random.uniform(0.8, 1.2, (RANKS, 4)) * (10.0, 10.0, 8.0, 1.0)
    stages = tuple(StageProfile(f, b, w, m, 0.4 * m) for f, b, w, m in times.tolist())
    t_comm = random.uniform(0.2, 0.6, (RANKS, RANKS))
    return Profile(stages, RANKS, tuple(map(tuple, t_comm.tolist())))


def measure(repeats: int) -> dict[str, float]:
    """Times the kernel alone, as a search calls it, and :func:`simulate` with all around it."""
    schedule = build_family("zb-h1", unequal_profile(), MICROBATCHES)
    costs = Costs.of(schedule.problem)
    order = np.concatenate(schedule.order)
    offsets = np.cumsum([0, *map(len, schedule.order)])
    start, end = np.empty(len(order)), np.empty(len(order))
    peak, position = np.empty(RANKS), np.empty(RANKS, dtype=np.int64)
    f_end, b_end = np.empty((2, RANKS, MICROBATCHES))

    def kernel() -> None:
        complete = run_kernel(
            order, offsets, costs.durations, costs.owner, costs.into_f, costs.into_b,
            costs.m_b, costs.m_w, start, end, peak, f_end, b_end, position,
        )  # fmt: skip
        assert complete

    seconds = _times(kernel, repeats)
    assert tuple(peak.tolist()) == simulate(schedule).peak_memory
    return {
        "ranks": RANKS,
        "microbatches": MICROBATCHES,
        "ops": len(order),
        "repeats": repeats,
        "median_ms": statistics.median(seconds) * 1e3,
        "best_ms": min(seconds) * 1e3,
        "ops_per_second": len(order) / statistics.median(seconds),
        "simulate_ms": statistics.median(_times(lambda: simulate(schedule), 21)) * 1e3,
    }


def _times(run: Callable[[], object], repeats: int) -> list[float]:
    run()  # compiles, and warms the caches
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return seconds
