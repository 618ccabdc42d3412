"""The cost model's kernel as a search calls it, on a schedule whose stages all differ."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from pipeloom import Profile, StageProfile, build_family, simulate
from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.model.ops import offsets_of

RANKS, MICROBATCHES = 32, 256


def unequal_profile(seed: int = 0) -> Profile:
    """No two stages and no two links alike: times +-20 %, delays 0.2 to 0.6 ms."""
    random = np.random.default_rng(seed)
    times = random.uniform(0.8, 1.2, (RANKS, 4)) * (10.0, 10.0, 8.0, 1.0)
    stages = tuple(StageProfile(f, b, w, m, 0.4 * m) for f, b, w, m in times.tolist())
    t_comm = random.uniform(0.2, 0.6, (RANKS, RANKS))
    return Profile(stages, RANKS, tuple(map(tuple, t_comm.tolist())))


def simulated(repeats: int) -> dict[str, float]:
    """Times the kernel alone, as a search calls it, and :func:`simulate` with all around it."""
    schedule = build_family("zb-h1", unequal_profile(), MICROBATCHES)
    order = np.concatenate(schedule.order)
    simulator = Simulator(schedule.problem, offsets_of(schedule.order))

    def kernel() -> None:
        assert simulator.run(order)

    seconds = _times(kernel, repeats)
    assert tuple(simulator.peak.tolist()) == simulate(schedule).peak_memory
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
