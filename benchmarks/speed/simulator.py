"""The speed of the simulator's kernel, called as a search calls it, for stages that all differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np

from pipeloom import Profile, StageProfile, build_family, simulate
from pipeloom.ir.cost.simulator import Simulator

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain

PART, RANKS, MICROBATCHES, REPEATS = "simulator", 32, 256, 301
TARGET_OPS, TARGET_MS = 40e6, 1.0


def cases(size: Size) -> Iterator[Case]:
    yield Case(PART, f"{RANKS} x {MICROBATCHES}", timed=True)


def measure(case: Case) -> Row:
    """The time of the kernel alone, called as a search calls it, and of the whole
    :func:`simulate`."""
    schedule = build_family("zb-h1", unequal_profile(), MICROBATCHES)
    order = np.concatenate(schedule.order)
    simulator = Simulator(schedule.problem, np.cumsum([0, *map(len, schedule.order)]))

    def kernel() -> None:
        assert simulator.run(order)

    seconds = times(kernel, REPEATS)
    assert tuple(simulator.peak.tolist()) == simulate(schedule).peak_memory
    return {
        "ops": len(order),
        "median_ms": median(seconds) * 1e3,
        "ops_per_second": len(order) / median(seconds),
        "simulate_ms": median(times(lambda: simulate(schedule), 21)) * 1e3,
    }


def unequal_profile(seed: int = 0) -> Profile:
    """A random profile in which all stages and links differ: times by +-20 %, delays from 0.2 to
    0.6 ms."""
    random = np.random.default_rng(seed)
    times = random.uniform(0.8, 1.2, (RANKS, 4)) * (10.0, 10.0, 8.0, 1.0)
    stages = tuple(StageProfile(f, b, w, m, 0.4 * m) for f, b, w, m in times.tolist())
    t_comm = random.uniform(0.2, 0.6, (RANKS, RANKS))
    return Profile(stages, RANKS, tuple(map(tuple, t_comm.tolist())))


def times(run: Callable[[], object], repeats: int) -> list[float]:
    """The duration in seconds of each of ``repeats`` calls of ``run``, after one call that compiles
    and fills caches."""
    run()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return seconds


def judge(rows: Rows) -> Iterator[Claim]:
    for row in rows:
        met = row["ops_per_second"] >= TARGET_OPS and row["median_ms"] < TARGET_MS
        words = (
            f"The simulator processes {row['ops_per_second'] / 1e6:.0f} million ops per second; a "
            f"schedule of {row['ops']:,} ops takes {row['median_ms']:.2f} ms."
        )
        yield Claim(PART, words, met)


columns = {
    PART: Table(
        *plain({"ranks x microbatches": "case"}),
        *plain("ops", ",d"),
        *plain({"median ms": "median_ms"}, ".3f"),
        *plain({"whole simulate(), ms": "simulate_ms"}, ".2f"),
        Column("million ops/s", lambda row: row["ops_per_second"] / 1e6, ".1f"),
    )
}
